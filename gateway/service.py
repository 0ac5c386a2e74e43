"""The call path: retry or twin, prompt, record in flight while it is sampled, commit, answer.

Collaborators: `Recorder` (what is written before an answer), `Engines` (router), `Renderer` (template
and tokenizer), `DeliveryLog`, and one `LiveAttempt` for each attempt. None of them refers back here.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from db import calls
from gateway.attempt_cache import AttemptCache
from gateway.clock import Clock
from gateway.delivered import DeliveryLog
from gateway.dialects.base import Dialect, Finished
from gateway.engines import Engines, OnTokens, SampledAnswer
from gateway.errors import LimitReached, PromptTooLong, Unauthorized, sentence_of
from gateway.live_attempt import LiveAttempt, LiveCall, Prompt, match, prompt_of
from gateway.recorder import Recorder
from gateway.rendering import Renderer
from gateway.store import Store
from gateway.watch import CallWatch
from gyre.contracts.engine import SamplingParams
from gyre.contracts.errors import Fenced
from gyre.contracts.ids import AttemptId, call_id
from gyre.contracts.lifecycle import Purpose
from gyre.contracts.roles import RoleRule
from gyre.contracts.tokens import attempt_of_token
from gyre.trajectory.answers import Answer, parse_answer, said_so_far
from gyre.trajectory.arrays import Ids, as_ids
from gyre.trajectory.canonical import CanonicalRequest, request_key

LONG_CHARACTERS = 10_000
"""More new text than this, some milliseconds of work, is tokenised in a thread."""


@dataclass(frozen=True, slots=True)
class CallSettings:
    """What the run says about calls: sampling and limits."""

    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    context_tokens: int
    max_calls: int
    max_concurrent_calls: int
    max_body_bytes: int
    roles: tuple[RoleRule, ...]
    """Of the run's harness."""
    early_start: bool
    """Whether that one bears a stream which begins before its answer is there, and may break."""
    live: bool = False
    """Whether streams say what is sampled before it is in the record."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, ready to be recorded."""

    state: LiveAttempt
    request: CanonicalRequest
    prompt: Prompt
    key: str
    dialect: Dialect
    role: str


class Service:
    """Serves the calls of one run."""

    def __init__(
        self,
        store: Store,
        engines: Engines,
        recorder: Recorder,
        renderer: Renderer,
        settings: CallSettings,
        secret: bytes,
        clock: Clock,
    ) -> None:
        self._engines, self._recorder, self._renderer = engines, recorder, renderer
        self.settings, self._secret, self.clock = settings, secret, clock
        self._delivered = DeliveryLog(store)
        self._tasks: set[asyncio.Task[Finished]] = set()
        self.counts: Counter[str] = Counter()
        """loaded (attempts), calls, joined, forked, failed and what `CallWatch` counts, since the start."""
        self.watch = CallWatch(self.counts)
        self._states = AttemptCache(store, lambda: self._delivered.attempts, engines.forget, self.counts)

    def authenticate(self, token: str) -> AttemptId:
        """Raises Unauthorized for a token that this run's secret did not make."""
        attempt = attempt_of_token(self._secret, token)
        if attempt is None:
            raise Unauthorized("no valid attempt token: give it as API key or as /t/<token> in the URL")
        return attempt

    async def count_tokens(self, attempt: AttemptId, request: CanonicalRequest) -> int:
        """The length of the prompt that this request would have; records nothing."""
        async with self._states.using(attempt) as state:
            await self._check_open(state)
            return len((await self._plan(state, request)).ids)

    async def open_call(
        self, attempt: AttemptId, request: CanonicalRequest, dialect: Dialect, role: str
    ) -> LiveCall:
        """Start a call, or take up the one that this request repeats; its answer is ``call.task``.

        Raises Unauthorized, Fenced, LimitReached, PromptTooLong or BadInput before anything is recorded.
        """
        async with self._states.using(attempt) as state:
            prompt = await self._plan(state, request)
            key = request_key(prompt.conversation_key, request.model)
            asked = Asked(state, request, prompt, key, dialect, role)
            repeated = state.retry_of(key)
            return await (self._begin(asked) if repeated is None else self._take_up(asked, repeated))

    def delivered(self, attempt: AttemptId, call: LiveCall) -> None:
        """The whole answer was written to the client: an equal request is another call now."""
        self._delivered.add(attempt, call.id)
        if (state := self._states.get(attempt)) is not None:
            state.settle(call)

    async def close(self) -> None:
        """Leave calls under way to the next gateway, in flight as they are, and write what was delivered."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._delivered.close()
        await self._engines.close()

    async def _begin(self, asked: Asked) -> LiveCall:
        """Record a new call as in flight, and start it.

        It is sampled while it is recorded: neither needs the other, and nothing is answered before both.
        """
        state, sampling = asked.state, self._sampling(asked)
        self._check_limits(state, asked.prompt)
        state.num_in_flight += 1
        call = _new_call(asked, state.take_index())
        sampled = self._sample(asked, call, sampling(call.index))
        try:
            index = await self._record(asked, call.index, sampling)
            if index != call.index:  # Another gateway had it; the seed follows from the index.
                sampled.cancel()
                call = _new_call(asked, index)
                sampled = self._sample(asked, call, sampling(index))
        except BaseException as error:
            sampled.cancel()
            state.num_in_flight -= 1
            if isinstance(error, Fenced):
                self._states.forget(state.attempt)
            raise
        state.num_calls = max(state.num_calls, index + 1)
        state.live[asked.key].append(call)
        self.counts["calls"] += 1
        self.counts["forked"] += asked.prompt.forked
        call.task = self._start(state, call, self._complete(asked, call, sampled))
        return call

    async def _take_up(self, asked: Asked, call: LiveCall) -> LiveCall:
        """Join or replay a call whose client went, or whose gateway did."""
        call.connected = True
        try:
            await self._check_open(asked.state)
        except BaseException:
            call.connected = False
            raise
        self.counts["joined"] += 1
        if call.task is None:
            asked.state.num_in_flight += 1
            call.task = self._start(asked.state, call, self._adopt(asked, call))
        return call

    def _start(
        self, state: LiveAttempt, call: LiveCall, work: Coroutine[Any, Any, Finished]
    ) -> asyncio.Task[Finished]:
        """Run the call apart from its client, which may go and come back."""

        def ended(task: asyncio.Task[Finished]) -> None:
            self._tasks.discard(task)
            self._recorder.release(call)
            state.num_in_flight -= 1
            self._states.weigh(state)
            if task.cancelled() or task.exception() is not None:
                self.counts["failed"] += 1
                state.settle(call)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    def _sample(self, asked: Asked, call: LiveCall, params: SamplingParams) -> asyncio.Task[SampledAnswer]:
        """Ask an engine."""
        on_tokens = self._teller(asked, call) if self.settings.live and asked.request.stream else None
        attempt, ids = asked.state.attempt, asked.prompt.ids
        task = asyncio.create_task(self._engines.sample(call.id, ids, params, attempt, on_tokens))
        # Whoever waits for it hears of a failure; nobody does when the call could not be recorded.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _complete(
        self, asked: Asked, call: LiveCall, sampling: asyncio.Task[SampledAnswer]
    ) -> Finished:
        """Read and commit what is sampled: when this returns, the answer is in the record."""
        state, prompt = asked.state, asked.prompt
        try:
            sampled = await sampling
            answer = self._read(asked, call, sampled)
            finished = await self._recorder.commit(state, call, prompt, sampled, answer)
            self.watch.note(answer, offered=bool(asked.request.tools))
            return finished
        except Exception as error:  # whatever it is, nobody works on the call any more
            if isinstance(error, Fenced):
                self._states.forget(state.attempt)
            await self._recorder.fail(call, sentence_of(error))
            raise

    def _teller(self, asked: Asked, call: LiveCall) -> OnTokens:
        """Tells the call what its answer has so far; made to text only if and when somebody listens."""

        def tell(ids: list[int]) -> None:
            call.said = lambda: said_so_far(
                self._renderer.decode_answer(as_ids(ids)), in_thinking=asked.prompt.in_thinking
            )
            call.grown.set()

        return tell

    def _read(self, asked: Asked, call: LiveCall, sampled: SampledAnswer) -> Answer:
        """What the policy said."""
        with self.clock.stage("read the answer"):
            return parse_answer(
                self._renderer.decode_answer(as_ids(sampled.ids)),
                call_id=call.id,
                prefix=asked.dialect.tool_prefix,
                in_thinking=asked.prompt.in_thinking,
                tools=asked.request.tools,
            )

    async def _adopt(self, asked: Asked, call: LiveCall) -> Finished:
        """Finish a call of a gateway that is gone: its index, and so its seed, stay."""
        found = await self._recorder.take_over(asked.state, call)
        if isinstance(found, Finished):
            return found
        return await self._complete(asked, call, self._sample(asked, call, found))

    def _check_limits(self, state: LiveAttempt, prompt: Prompt) -> None:
        settings = self.settings
        if state.num_calls >= settings.max_calls:
            raise LimitReached(f"this attempt has used its {settings.max_calls} model calls")
        if state.num_in_flight >= settings.max_concurrent_calls:
            raise LimitReached(f"this attempt has {state.num_in_flight} calls under way, no more are allowed")
        if len(prompt.ids) >= settings.context_tokens:
            raise PromptTooLong(len(prompt.ids), settings.context_tokens - 1)

    async def _record(self, asked: Asked, index: int, sampling: Callable[[int], SamplingParams]) -> int:
        new = calls.NewCall(
            dialect=asked.dialect.name,
            role=asked.role,
            request_key=asked.key,
            requested=asked.request.requested,
            num_input_tokens=len(asked.prompt.ids),
            num_reused_tokens=asked.prompt.num_reused,
            input_sha256=asked.prompt.sha256,
        )
        return await self._recorder.begin(asked.state, index, new, sampling)

    def _sampling(self, asked: Asked) -> Callable[[int], SamplingParams]:
        """The run's sampling for a call index; of the harness only a smaller bound counts."""
        settings, facts = self.settings, asked.state.facts
        bound = min(settings.max_tokens, settings.context_tokens - len(asked.prompt.ids))
        return lambda index: SamplingParams(
            temperature=0 if facts.purpose == Purpose.GREEDY else settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            max_new_tokens=min(bound, asked.request.max_tokens or bound),
            stop_token_ids=list(self._renderer.stop_ids),
            sampling_seed=call_seed(facts.execution, facts.number, index),
        )

    async def _plan(self, state: LiveAttempt, request: CanonicalRequest) -> Prompt:
        """The prompt. An answer in it that is not known here may be one that another gateway recorded."""
        known = state.tree
        prompt = await self._planned(state, request)
        if prompt.forked:
            await self._recorder.catch_up(state)
            if state.tree is not known:
                return await self._planned(state, request)
        return prompt

    async def _planned(self, state: LiveAttempt, request: CanonicalRequest) -> Prompt:
        """The prompt by the tree that is in memory; long new text is encoded in a thread."""
        with self.clock.stage("match and render"):
            found = match(state, request, self._renderer)
        if len(found.text) < LONG_CHARACTERS:
            suffix = self._encode(found.text)
        else:
            suffix = await asyncio.to_thread(self._encode, found.text)
        with self.clock.stage("match and render"):
            return prompt_of(state, found, suffix, self._renderer)

    def _encode(self, text: str) -> Ids:
        with self.clock.stage("encode"):
            return self._renderer.encode(text)

    async def _check_open(self, state: LiveAttempt) -> None:
        try:
            await self._recorder.check_open(state.attempt)
        except Fenced:
            self._states.forget(state.attempt)
            raise


def _new_call(asked: Asked, index: int) -> LiveCall:
    name = call_id(asked.state.attempt, index)
    return LiveCall(name, asked.key, index, len(asked.prompt.ids), connected=True)


def call_seed(execution: str, attempt_number: int, call_index: int) -> int:
    """A 63-bit seed that a call keeps over crashes, moves and restarts."""
    digest = hashlib.sha256(f"{execution}|{attempt_number}|{call_index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") & ((1 << 63) - 1)
