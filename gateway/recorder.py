"""Writes calls and nodes to Postgres before anything is answered, and renews leases of calls under way."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from functools import partial

from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from db import attempts, calls, recording
from gateway.batches import Batches
from gateway.dialects.base import Finished
from gateway.engines import SampledAnswer
from gateway.live_attempt import LiveAttempt, LiveCall, Record, count_calls, finished_of, rebuild_record
from gateway.prompts import Prompt
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
"""An in-flight call whose gateway has not renewed its lease for this long may be reclaimed."""
RECLAIM_POLL_S = 1.0


class Recorder:
    """The only writer of this gateway's calls; holds their leases."""

    def __init__(self, store: Store, address: str) -> None:
        """``address`` is this gateway's host and port: an earlier process there is dead."""
        self._store = store
        self._dead_prefix = f"{address}/"
        self._owner = f"{address}/{uuid.uuid4().hex}"
        self._held: set[CallId] = set()
        begin = partial(recording.begin, owner=self._owner, ttl_s=LEASE_S)
        commit = partial(recording.commit, owner=self._owner)
        self._begins = Batches[recording.Begin](store, begin, "begin")
        self._commits = Batches[recording.Commit](store, commit, "commit")

    async def begin(
        self,
        live: LiveAttempt,
        index: int,
        new: calls.NewCall,
        sampling: Callable[[int], SamplingParams],
    ) -> int:
        """Record a call as in flight and hold its lease; return its index. Raises Fenced.

        The index is ``index`` unless another gateway took it. When the connection is lost during the
        commit, the call is recorded again under the next index. The first row, if it was written, then
        belongs to nobody: its lease expires.
        """

        def parameters(taken: int) -> dict[str, object]:
            return sampling(taken).model_dump()

        def begin_alone(session: Session) -> int:
            return calls.begin(session, live.attempt, new, parameters, owner=self._owner, ttl_s=LEASE_S)

        if not await self._begins.put(recording.Begin(live.attempt, index, new, parameters(index))):
            index = await self._store.run(begin_alone)
        self._held.add(call_id(live.attempt, index))
        return index

    def release(self, call: LiveCall) -> None:
        """Stop renewing the call's lease."""
        self._held.discard(call.id)

    async def check_open(self, attempt: AttemptId) -> None:
        """Raise Fenced if the attempt is sealed."""
        await self._store.run(lambda s: attempts.lock_open(s, attempt))

    async def reclaim(self, live: LiveAttempt, call: LiveCall) -> Finished | SamplingParams:
        """Take the lease of an orphan and return its sampling parameters, or its answer if it has one.

        While another gateway still holds the lease, wait until it expires or the call ends.
        """
        while True:
            reclaimed = await self._store.run(
                lambda s: calls.reclaim(s, call.id, self._owner, self._dead_prefix, LEASE_S)
            )
            row = await self._store.run(lambda s: calls.get(s, call.id))
            if reclaimed:
                self._held.add(call.id)
                return SamplingParams.model_validate(row.sampling)
            if finished := finished_of(row):
                await self.catch_up(live)
                return finished
            if row.failure:
                raise EngineFailed(row.failure)
            await asyncio.sleep(RECLAIM_POLL_S)

    async def catch_up(self, live: LiveAttempt) -> None:
        """Replace ``live.record`` if another gateway has added to it."""
        async with live.commit_lock:
            next_index = await self._store.run(lambda s: calls.next_node_index(s, live.attempt))
            if next_index != live.record.tree.next_index:
                await self._reload(live)

    async def commit(
        self, live: LiveAttempt, call: LiveCall, prompt: Prompt, sampled: SampledAnswer, answer: Answer
    ) -> Finished:
        """Write the call and its nodes in one transaction, then show them to later calls.

        Commits of one attempt run one at a time, so that each is placed in the tree as it then is.
        Raises Fenced if the attempt is sealed, EngineFailed if another gateway reclaimed the call.
        """
        async with live.commit_lock:
            for _ in range(COMMIT_TRIES):
                nodes, outcome = _new_rows(live.record, prompt, sampled, answer)
                try:
                    committed = await self._commit(recording.Commit(call.id, live.attempt, nodes, outcome))
                except IntegrityError:
                    # Another gateway used the node's index: place the answer again in the newer tree.
                    await self._reload(live)
                    continue
                if not committed:
                    await self._reload(live)
                    return await self._committed_elsewhere(call)
                _append_nodes(live.record, nodes, answer)
                return Finished(answer, FinishReason(outcome.finish_reason), outcome.num_output_tokens)
        raise EngineFailed(f"{call.id} could not be recorded: its attempt is written by another gateway")

    async def fail(self, call: LiveCall, reason: str) -> None:
        """Record that a call failed. If that cannot be written, its lease expires instead."""
        try:
            await self._store.run(lambda s: calls.fail(s, call.id, self._owner, reason))
        except SQLAlchemyError:
            return

    async def renew_forever(self) -> None:
        """Renew the leases until cancelled. Tolerates Postgres outages."""
        while True:
            await asyncio.sleep(LEASE_S / 3)
            try:
                await self.renew()
            except SQLAlchemyError:
                continue

    async def renew(self) -> None:
        """Renew the leases of all calls under way here."""
        if held := sorted(self._held):
            await self._store.run(lambda s: calls.renew(s, self._owner, held, LEASE_S))

    async def _commit(self, one: recording.Commit) -> bool:
        """Commit together with other calls; separately if the batch skipped this one."""
        if await self._commits.put(one):
            return True
        return await self._store.run(
            lambda s: calls.commit(s, one.call, one.attempt, self._owner, one.nodes, one.outcome)
        )

    async def _committed_elsewhere(self, call: LiveCall) -> Finished:
        """Return the answer of a call that is not ours in flight.

        Either our own commit went through and its reply was lost, or another gateway reclaimed the call.
        """
        row = await self._store.run(lambda s: calls.get(s, call.id))
        if (finished := finished_of(row)) is None:
            raise EngineFailed(f"{call.id} was taken over by another gateway")
        return finished

    async def _reload(self, live: LiveAttempt) -> None:
        """Read the record again. Hold the commit lock: nothing may be appended here at the same time."""

        def read(session: Session) -> tuple[Record, int]:
            nodes, rows = calls.nodes(session, live.attempt), calls.calls(session, live.attempt)
            return rebuild_record(nodes, rows), count_calls(rows)

        live.adopt(*await self._store.run(read))


def _new_rows(
    record: Record, prompt: Prompt, sampled: SampledAnswer, answer: Answer
) -> tuple[list[calls.NewNode], calls.Outcome]:
    """Build the new nodes of an answer and its call's outcome, from the tree as it is."""
    placed, index = record.tree.place(prompt.base, prompt.suffix), record.tree.next_index
    nodes: list[calls.NewNode] = []
    context = placed.point
    if len(placed.rest):
        parent, offset = (context.node, context.offset) if context else (None, 0)
        position, ids = record.tree.depth(context), placed.rest.tobytes()
        nodes.append(calls.NewNode(index, parent, offset, position, NodeKind.CONTEXT, ids))
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


def _append_nodes(record: Record, nodes: Sequence[calls.NewNode], answer: Answer) -> None:
    """Show committed nodes to later calls."""
    for new in nodes:
        parent = None if new.parent is None else Point(new.parent, new.parent_offset)
        node = Node(new.index, parent, new.position, new.kind, unpack_ids(new.token_ids))
        record.append(node, new.match_key, answer if new.kind == NodeKind.SAMPLED else None)
