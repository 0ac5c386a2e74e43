"""The call path: build the prompt, join or replay a retry, record while sampling, commit, answer.

Collaborators: `AttemptCache` (one `LiveAttempt` per attempt), `Renderer` (template and tokenizer), `Engines`
(router), `Recorder` (everything written before an answer) and `DeliveryLog`. None of them refers back here.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from db import calls
from gateway.attempt_cache import AttemptCache
from gateway.delivered import DeliveryLog
from gateway.dialects.base import Dialect, Finished
from gateway.engines import Engines, OnTokens, SampledAnswer
from gateway.errors import LimitReached, PromptTooLong, Unauthorized, sentence_of
from gateway.live_attempt import LiveAttempt, LiveCall
from gateway.prompts import Prompt, assemble_prompt, match_request
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
from gyre.trajectory.answers import parse_answer, said_so_far
from gyre.trajectory.arrays import as_ids
from gyre.trajectory.canonical import CanonicalRequest, request_key

LONG_CHARACTERS = 10_000
"""More new text than this, some milliseconds of work, is tokenized in a thread."""


@dataclass(frozen=True, slots=True)
class CallSettings:
    """Sampling and limits of the run's calls."""

    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    context_tokens: int
    max_calls: int
    max_concurrent_calls: int
    max_body_bytes: int
    roles: tuple[RoleRule, ...]
    """The role rules of the run's harness."""
    early_start: bool
    """Whether the harness tolerates a stream that begins before its answer is there, and may break."""
    live: bool = False
    """Whether streams send text while it is sampled, before it is in the record."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One request with its prompt, ready to be recorded."""

    live: LiveAttempt
    request: CanonicalRequest
    prompt: Prompt
    key: str
    dialect: Dialect
    role: str

    def open_call(self, index: int) -> LiveCall:
        """Return a call of this request that nobody works on yet."""
        name = call_id(self.live.attempt, index)
        return LiveCall(name, self.key, index, len(self.prompt.ids), connected=True)

    def new_row(self) -> calls.NewCall:
        """Return the part of the call's row that the request determines."""
        return calls.NewCall(
            dialect=self.dialect.name,
            role=self.role,
            request_key=self.key,
            requested=self.request.requested,
            num_input_tokens=len(self.prompt.ids),
            num_reused_tokens=self.prompt.num_reused,
            input_sha256=self.prompt.sha256,
        )


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
    ) -> None:
        self._engines, self._recorder, self._renderer = engines, recorder, renderer
        self.settings, self._secret = settings, secret
        self._delivered = DeliveryLog(store)
        self._tasks: set[asyncio.Task[Finished]] = set()
        self.counts: Counter[str] = Counter()
        """Since the start: loaded (attempts), calls, joined, forked, failed, and those of `CallWatch`."""
        self.watch = CallWatch(self.counts)
        self.attempts = AttemptCache(store, lambda: self._delivered.attempts, engines.forget, self.counts)

    def authenticate(self, token: str) -> AttemptId:
        """Return the attempt of a token. Raises Unauthorized if this run's secret did not sign it."""
        attempt = attempt_of_token(self._secret, token)
        if attempt is None:
            raise Unauthorized("no valid attempt token: give it as API key or as /t/<token> in the URL")
        return attempt

    async def count_tokens(self, attempt: AttemptId, request: CanonicalRequest) -> int:
        """Return the length of the prompt that this request would have; record nothing."""
        async with self.attempts.using(attempt) as live:
            await self._check_open(live)
            return len((await self._build_prompt(live, request)).ids)

    async def open_call(
        self, attempt: AttemptId, request: CanonicalRequest, dialect: Dialect, role: str
    ) -> LiveCall:
        """Start a call, or join or replay the one that this request retries; its answer is ``call.task``.

        Raises Unauthorized, Fenced, LimitReached, PromptTooLong or BadInput before anything is recorded.
        """
        async with self.attempts.using(attempt) as live:
            prompt = await self._build_prompt(live, request)
            key = request_key(prompt.conversation_key, request.model)
            prepared = PreparedRequest(live, request, prompt, key, dialect, role)
            # An equal request is a retry only if its call lost its client. Otherwise it is a sibling, which
            # is sampled on its own.
            if (abandoned := live.abandoned_call(key)) is not None:
                return await self._join_or_replay(prepared, abandoned)
            return await self._start_call(prepared)

    def delivered(self, attempt: AttemptId, call: LiveCall) -> None:
        """Note that the client has the whole answer: an equal request is a new call from now on."""
        self._delivered.add(attempt, call.id)
        if (live := self.attempts.get(attempt)) is not None:
            live.settle(call)

    async def close(self) -> None:
        """Leave calls under way in flight for the next gateway, and write which answers were delivered."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._delivered.close()
        await self._engines.close()

    async def _build_prompt(self, live: LiveAttempt, request: CanonicalRequest) -> Prompt:
        """Build the prompt; if it contains an unknown answer, reload in case another gateway recorded it."""
        known = live.record
        prompt = await self._build_from_memory(live, request)
        if prompt.forked:
            await self._recorder.catch_up(live)
            if live.record is not known:
                return await self._build_from_memory(live, request)
        return prompt

    async def _build_from_memory(self, live: LiveAttempt, request: CanonicalRequest) -> Prompt:
        found = match_request(live, request, self._renderer)
        if len(found.text) < LONG_CHARACTERS:
            suffix = self._renderer.encode(found.text)
        else:
            suffix = await asyncio.to_thread(self._renderer.encode, found.text)
        return assemble_prompt(live, found, suffix, self._renderer)

    async def _start_call(self, prepared: PreparedRequest) -> LiveCall:
        """Record a new call as in flight, and sample it at the same time.

        Recording and sampling do not need each other, and nothing is answered before both are done.
        """
        live = prepared.live
        self._check_limits(live, prepared.prompt)
        live.num_in_flight += 1
        sampling = self._sampling_by_index(prepared)
        call = prepared.open_call(live.take_index())
        sampled = self._sample(prepared, call, sampling(call.index))
        try:
            index = await self._recorder.begin(live, call.index, prepared.new_row(), sampling)
            if index != call.index:
                # Another gateway took the index, and the seed follows from the index: sample again.
                sampled.cancel()
                call = prepared.open_call(index)
                sampled = self._sample(prepared, call, sampling(index))
        except BaseException as error:
            sampled.cancel()
            live.num_in_flight -= 1
            if isinstance(error, Fenced):
                self.attempts.forget(live.attempt)
            raise
        live.num_calls = max(live.num_calls, index + 1)
        live.open_calls[call.key].append(call)
        self.counts["calls"] += 1
        self.counts["forked"] += prepared.prompt.forked
        call.task = self._run(live, call, self._finish_call(prepared, call, sampled))
        return call

    async def _join_or_replay(self, prepared: PreparedRequest, call: LiveCall) -> LiveCall:
        """Attach a retry to its call: join it in flight, replay its answer, or resume an orphan."""
        call.connected = True
        try:
            await self._check_open(prepared.live)
        except BaseException:
            call.connected = False
            raise
        self.counts["joined"] += 1
        if call.task is None:
            prepared.live.num_in_flight += 1
            call.task = self._run(prepared.live, call, self._resume_orphan(prepared, call))
        return call

    async def _resume_orphan(self, prepared: PreparedRequest, call: LiveCall) -> Finished:
        """Finish a call of a gateway that is gone: its index, and so its seed, stay."""
        reclaimed = await self._recorder.reclaim(prepared.live, call)
        if isinstance(reclaimed, Finished):
            return reclaimed
        return await self._finish_call(prepared, call, self._sample(prepared, call, reclaimed))

    def _run(
        self, live: LiveAttempt, call: LiveCall, work: Coroutine[Any, Any, Finished]
    ) -> asyncio.Task[Finished]:
        """Run the call separately from its client, which may leave and come back."""

        def ended(task: asyncio.Task[Finished]) -> None:
            self._tasks.discard(task)
            self._recorder.release(call)
            live.num_in_flight -= 1
            self.attempts.update_size(live)
            if task.cancelled() or task.exception() is not None:
                self.counts["failed"] += 1
                live.settle(call)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    def _sample(
        self, prepared: PreparedRequest, call: LiveCall, params: SamplingParams
    ) -> asyncio.Task[SampledAnswer]:
        """Start to sample the call's answer."""

        def show_progress(ids: list[int]) -> None:
            # Decoded only if and when a stream reads it.
            call.so_far = lambda: said_so_far(
                self._renderer.decode_answer(as_ids(ids)), in_thinking=prepared.prompt.in_thinking
            )
            call.progressed.set()

        on_tokens: OnTokens | None = show_progress if self.settings.live and prepared.request.stream else None
        attempt, ids = prepared.live.attempt, prepared.prompt.ids
        task = asyncio.create_task(self._engines.sample(call.id, ids, params, attempt, on_tokens))
        # Retrieve the exception: if the call could not be recorded nobody awaits this task, and asyncio
        # would log the failure.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _finish_call(
        self, prepared: PreparedRequest, call: LiveCall, sampling: asyncio.Task[SampledAnswer]
    ) -> Finished:
        """Parse and commit the sampled answer: when this returns, the answer is in the record."""
        live, prompt, tools = prepared.live, prepared.prompt, prepared.request.tools
        try:
            sampled = await sampling
            answer = parse_answer(
                self._renderer.decode_answer(as_ids(sampled.ids)),
                call_id=call.id,
                prefix=prepared.dialect.tool_prefix,
                in_thinking=prompt.in_thinking,
                tools=tools,
            )
            finished = await self._recorder.commit(live, call, prompt, sampled, answer)
            self.watch.note(answer, offered=bool(tools))
            return finished
        except Exception as error:  # Whatever it is, nobody works on the call after this.
            if isinstance(error, Fenced):
                self.attempts.forget(live.attempt)
            await self._recorder.fail(call, sentence_of(error))
            raise

    def _check_limits(self, live: LiveAttempt, prompt: Prompt) -> None:
        settings = self.settings
        if live.num_calls >= settings.max_calls:
            raise LimitReached(f"this attempt has used its {settings.max_calls} model calls")
        if live.num_in_flight >= settings.max_concurrent_calls:
            raise LimitReached(f"this attempt has {live.num_in_flight} calls under way, no more are allowed")
        if len(prompt.ids) >= settings.context_tokens:
            raise PromptTooLong(len(prompt.ids), settings.context_tokens - 1)

    def _sampling_by_index(self, prepared: PreparedRequest) -> Callable[[int], SamplingParams]:
        """Return the run's sampling parameters as a function of the call index.

        Of the harness's own wishes, only a smaller token limit counts.
        """
        settings, facts = self.settings, prepared.live.facts
        limit = min(settings.max_tokens, settings.context_tokens - len(prepared.prompt.ids))
        return lambda index: SamplingParams(
            temperature=0 if facts.purpose == Purpose.GREEDY else settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            max_new_tokens=min(limit, prepared.request.max_tokens or limit),
            stop_token_ids=list(self._renderer.stop_ids),
            sampling_seed=call_seed(facts.execution, facts.number, index),
        )

    async def _check_open(self, live: LiveAttempt) -> None:
        try:
            await self._recorder.check_open(live.attempt)
        except Fenced:
            self.attempts.forget(live.attempt)
            raise


def call_seed(execution: str, attempt_number: int, call_index: int) -> int:
    """Return a 63-bit seed that a call keeps across crashes, moves and restarts."""
    digest = hashlib.sha256(f"{execution}|{attempt_number}|{call_index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") & ((1 << 63) - 1)
