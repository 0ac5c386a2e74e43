"""Writes calls and nodes to Postgres before anything is answered, and keeps the leases of those under way."""

import asyncio
import uuid
from collections.abc import Callable, Sequence

from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from db import attempts, calls, recording
from db.direct import Statement
from gateway.batches import Batches
from gateway.dialects.base import Finished
from gateway.engines import SampledAnswer
from gateway.live_attempt import LiveAttempt, LiveCall, Prompt, finished_of, restored
from gateway.store import Store
from gyre.contracts.engine import SamplingParams
from gyre.contracts.errors import EngineFailed
from gyre.contracts.ids import AttemptId, CallId, call_id
from gyre.contracts.lifecycle import FinishReason, NodeKind
from gyre.trajectory.answers import Answer
from gyre.trajectory.arrays import as_ids, as_logprobs, output_sha256, unpack_ids
from gyre.trajectory.canonical import extend_key
from gyre.trajectory.tree import Node, Point

COMMIT_TRIES = 3
LEASE_S = 30.0
"""An in-flight call whose gateway did not renew for so long may be taken over."""
TAKE_OVER_POLL_S = 1.0


class Recorder:
    """The record of one gateway process."""

    def __init__(self, store: Store, address: str) -> None:
        """``address`` is this gateway's host and port: an earlier process there is dead."""
        self._store = store
        self._dead_prefix = f"{address}/"
        self._owner = f"{address}/{uuid.uuid4().hex}"
        self._held: set[CallId] = set()
        self._begins = Batches[recording.Begin](store, self._begin_all, "begin")
        self._commits = Batches[recording.Commit](store, self._commit_all, "commit")

    async def begin(
        self,
        state: LiveAttempt,
        index: int,
        new: calls.NewCall,
        sampling: Callable[[int], SamplingParams],
    ) -> int:
        """Record a call as in flight and hold it; returns its index, ``index`` if it is free. Raises Fenced.

        When the connection is lost in the commit, the call is recorded again under the next index. The
        row of the first time, if there is one, is held by nobody: its lease runs out.
        """

        parameters = lambda index: sampling(index).model_dump()  # noqa: E731
        if not await self._begins.put(recording.Begin(state.attempt, index, new, parameters(index))):
            begin = lambda s: calls.begin(s, state.attempt, new, parameters, owner=self._owner, ttl_s=LEASE_S)  # noqa: E731
            index = await self._store.run(begin)
        self._held.add(call_id(state.attempt, index))
        return index

    def release(self, call: LiveCall) -> None:
        """Say that nobody here works on the call any more."""
        self._held.discard(call.id)

    async def check_open(self, attempt: AttemptId) -> None:
        """Raises Fenced if the attempt is sealed."""
        await self._store.run(lambda s: attempts.lock_open(s, attempt))

    async def take_over(self, state: LiveAttempt, call: LiveCall) -> Finished | SamplingParams:
        """Take up a call that another gateway left: its answer if it has one, else how it is sampled.

        While the other one still holds its lease, wait: the lease or the call ends.
        """
        while True:
            taken = await self._store.run(
                lambda s: calls.reclaim(s, call.id, self._owner, self._dead_prefix, LEASE_S)
            )
            row = await self._store.run(lambda s: calls.get(s, call.id))
            if taken:
                self._held.add(call.id)
                return SamplingParams.model_validate(row.sampling)
            if finished := finished_of(row):
                await self.catch_up(state)
                return finished
            if row.failure:
                raise EngineFailed(row.failure)
            await asyncio.sleep(TAKE_OVER_POLL_S)

    async def catch_up(self, state: LiveAttempt) -> None:
        """Read the record again if another gateway has added to it: ``state.tree`` is another one then."""
        async with state.commit_lock:
            next_index = await self._store.run(lambda s: calls.next_node_index(s, state.attempt))
            if next_index != state.tree.next_index:
                await self._reload(state)

    async def commit(
        self, state: LiveAttempt, call: LiveCall, prompt: Prompt, sampled: SampledAnswer, answer: Answer
    ) -> Finished:
        """Write the call and its nodes in one transaction, then show them to later calls.

        Commits of one attempt go one after the other, so that each is placed in the tree as it is.
        Raises Fenced, or EngineFailed if another gateway gave the call up.
        """
        async with state.commit_lock:
            for _ in range(COMMIT_TRIES):
                nodes, outcome = _new_rows(state, prompt, sampled, answer)
                try:
                    if await self._committed(call, state, nodes, outcome):
                        return _shown(state, nodes, outcome, answer)
                    await self._reload(state)
                    return await self._answered_elsewhere(call)
                except IntegrityError:
                    # Another gateway used the node's index: place it again in the tree as it is now.
                    await self._reload(state)
        raise EngineFailed(f"{call.id} could not be recorded: its attempt is written by another gateway")

    async def fail(self, call: LiveCall, reason: str) -> None:
        """Record that a call was given up; if that cannot be written its lease runs out instead."""
        try:
            await self._store.run(lambda s: calls.fail(s, call.id, self._owner, reason))
        except SQLAlchemyError:
            return

    async def renew_for_ever(self) -> None:
        """Renew the leases until cancelled; Postgres being away is borne."""
        while True:
            await asyncio.sleep(LEASE_S / 3)
            try:
                await self.renew()
            except SQLAlchemyError:
                continue

    async def renew(self) -> None:
        """Renew the leases of the calls that somebody here works on."""
        if held := sorted(self._held):
            await self._store.run(lambda s: calls.renew(s, self._owner, held, LEASE_S))

    async def _committed(
        self, call: LiveCall, state: LiveAttempt, nodes: list[calls.NewNode], outcome: calls.Outcome
    ) -> bool:
        if await self._commits.put(recording.Commit(call.id, state.attempt, nodes, outcome)):
            return True
        return await self._store.run(
            lambda s: calls.commit(s, call.id, state.attempt, self._owner, nodes, outcome)
        )

    def _begin_all(self, begins: Sequence[recording.Begin]) -> Statement:
        return recording.begin(begins, owner=self._owner, ttl_s=LEASE_S)

    def _commit_all(self, commits: Sequence[recording.Commit]) -> Statement:
        return recording.commit(commits, owner=self._owner)

    async def _answered_elsewhere(self, call: LiveCall) -> Finished:
        """The answer of a call that is not ours in flight: a lost commit of ours, or another gateway's."""
        row = await self._store.run(lambda s: calls.get(s, call.id))
        if (finished := finished_of(row)) is None:
            raise EngineFailed(f"{call.id} was taken over by another gateway")
        return finished

    async def _reload(self, state: LiveAttempt) -> None:
        """Only with the commit lock: nothing is added here meanwhile."""

        def read(session: Session) -> LiveAttempt:
            nodes, rows = calls.nodes(session, state.attempt), calls.calls(session, state.attempt)
            return restored(state.attempt, state.facts, nodes, rows)

        state.know(await self._store.run(read))


def _new_rows(
    state: LiveAttempt, prompt: Prompt, sampled: SampledAnswer, answer: Answer
) -> tuple[list[calls.NewNode], calls.Outcome]:
    """The new nodes of an answer and the call's outcome, from the tree as it is."""
    placed, index = state.tree.place(prompt.base, prompt.suffix), state.tree.next_index
    nodes: list[calls.NewNode] = []
    context = placed.point
    if len(placed.rest):
        nodes.append(_new_node(state, index, context, NodeKind.CONTEXT, placed.rest.tobytes()))
        context, index = Point(index, len(placed.rest)), index + 1
    assert context is not None, "a prompt has at least one token"
    nodes.append(_sampled_node(index, context, prompt, sampled, answer))
    return nodes, _outcome(context, index, sampled, answer)


def _sampled_node(
    index: int, context: Point, prompt: Prompt, sampled: SampledAnswer, answer: Answer
) -> calls.NewNode:
    return calls.NewNode(
        index=index,
        parent=context.node,
        parent_offset=context.offset,
        position=len(prompt.ids),
        kind=NodeKind.SAMPLED,
        token_ids=as_ids(sampled.ids).tobytes(),
        logprobs=as_logprobs(sampled.logprobs).tobytes(),
        versions=sampled.versions,
        mixed_kv_tokens=sampled.mixed_kv_tokens,
        finish_reason=sampled.finish_reason,
        match_key=extend_key(prompt.conversation_key, answer.message()),
    )


def _outcome(context: Point, index: int, sampled: SampledAnswer, answer: Answer) -> calls.Outcome:
    return calls.Outcome(
        context_node=context.node,
        context_offset=context.offset,
        sampled_node=index,
        num_output_tokens=len(sampled.ids),
        num_cached_tokens=sampled.cached_tokens,
        num_malformed_tool_calls=answer.num_malformed,
        finish_reason=sampled.finish_reason,
        output_sha256=output_sha256(as_ids(sampled.ids), as_logprobs(sampled.logprobs)),
        response=answer.as_json(),
        cell_id=sampled.cell_id,
        engine_ms=sampled.engine_ms,
    )


def _new_node(
    state: LiveAttempt, index: int, parent: Point | None, kind: NodeKind, token_ids: bytes
) -> calls.NewNode:
    offset, position = parent.offset if parent else 0, state.tree.depth(parent)
    return calls.NewNode(index, parent.node if parent else None, offset, position, kind, token_ids)


def _shown(
    state: LiveAttempt, nodes: list[calls.NewNode], outcome: calls.Outcome, answer: Answer
) -> Finished:
    """Let later calls see what was committed."""
    for new in nodes:
        parent = None if new.parent is None else Point(new.parent, new.parent_offset)
        node = Node(new.index, parent, new.position, new.kind, unpack_ids(new.token_ids))
        state.remember(node, new.match_key, answer if new.kind == NodeKind.SAMPLED else None)
    return Finished(answer, FinishReason(outcome.finish_reason), outcome.num_output_tokens)
