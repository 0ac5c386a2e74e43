"""Model calls and the tree nodes they introduce: begin, reclaim, commit, fail, deliver and read them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import and_, exists, func, insert, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from db import attempts
from db.models import AttemptRow, ExecutionRow, ModelCallRow, QueryGroupRow, RunRow, TreeNodeRow
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import AttemptId, CallId, RunId, call_id, node_id
from gyre.contracts.lifecycle import CallStatus, NodeKind


@dataclass(frozen=True, slots=True)
class NewCall:
    """The columns of a call that are known before the engine is asked."""

    dialect: str
    role: str
    request_key: str
    requested: dict[str, Any]
    num_input_tokens: int
    num_reused_tokens: int
    input_sha256: str


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node to be written; ``parent`` is the index of a committed node or of one earlier in the list."""

    index: int
    parent: int | None
    parent_offset: int
    position: int
    kind: NodeKind
    token_ids: bytes
    logprobs: bytes | None = None
    versions: list[list[int]] | None = None
    mixed_kv_tokens: int = 0
    finish_reason: str | None = None
    match_key: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The engine's answer and how it was read. The ``*_node`` fields are node indexes of the attempt."""

    context_node: int
    context_offset: int
    sampled_node: int
    num_output_tokens: int
    num_cached_tokens: int
    num_malformed_tool_calls: int
    finish_reason: str
    output_sha256: str
    response: dict[str, Any]
    cell_id: str
    engine_ms: int


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """The attempt as the gateway sees it before its first call."""

    number: int
    execution: str
    purpose: str
    status: str
    has_calls: bool


def run_secret(session: Session, run: RunId) -> bytes:
    """Return the HMAC key of the run's attempt tokens. Raises BadInput for an unknown run."""
    secret = session.scalars(select(RunRow.secret).where(RunRow.id == run)).first()
    if secret is None:
        raise BadInput(f"no run {run!r} in this database")
    return secret


def attempt_facts(session: Session, attempt: AttemptId) -> AttemptFacts | None:
    """Return the facts of an attempt, or None if there is no such attempt."""
    has_calls = exists().where(ModelCallRow.attempt_id == AttemptRow.id)
    query = (
        select(
            AttemptRow.number, AttemptRow.execution_id, QueryGroupRow.purpose, AttemptRow.status, has_calls
        )
        .join(ExecutionRow, ExecutionRow.id == AttemptRow.execution_id)
        .join(QueryGroupRow, QueryGroupRow.id == ExecutionRow.group_id)
        .where(AttemptRow.id == attempt)
    )
    row = session.execute(query).first()
    return AttemptFacts(*row) if row else None


def nodes(session: Session, attempt: AttemptId) -> Sequence[TreeNodeRow]:
    """Return the attempt's tree, parents before children."""
    query = select(TreeNodeRow).where(TreeNodeRow.attempt_id == attempt).order_by(TreeNodeRow.index)
    return session.scalars(query).all()


def next_node_index(session: Session, attempt: AttemptId) -> int:
    """Return the index of the attempt's next node. Nodes are numbered without gaps."""
    last = session.scalar(select(func.max(TreeNodeRow.index)).where(TreeNodeRow.attempt_id == attempt))
    return 0 if last is None else last + 1


def calls(session: Session, attempt: AttemptId) -> Sequence[ModelCallRow]:
    """Return the attempt's calls in order."""
    query = select(ModelCallRow).where(ModelCallRow.attempt_id == attempt).order_by(ModelCallRow.index)
    return session.scalars(query).all()


def get(session: Session, call: CallId) -> ModelCallRow:
    """Return one call, read again even if the session holds it already."""
    return session.get_one(ModelCallRow, call, populate_existing=True)


def begin(
    session: Session,
    attempt: AttemptId,
    new: NewCall,
    sampling: Callable[[int], dict[str, Any]],
    *,
    owner: str,
    ttl_s: float,
) -> int:
    """Write the in-flight row under the attempt's next free index and return that index.

    ``sampling`` maps an index to the call's parameters, because the seed depends on the index. Raises
    Fenced if the attempt is sealed.
    """
    row = attempts.lock_open(session, attempt)
    fixed = {
        "attempt_id": attempt,
        "execution_id": row.execution_id,
        "run_id": row.run_id,
        "status": CallStatus.IN_FLIGHT,
        "lease_owner": owner,
        "lease_expires_at": func.now() + timedelta(seconds=ttl_s),
        **{name: getattr(new, name) for name in NewCall.__slots__},
    }
    highest = select(func.max(ModelCallRow.index)).where(ModelCallRow.attempt_id == attempt)
    while True:
        last = session.scalar(highest)
        index = 0 if last is None else last + 1
        values = fixed | {"id": call_id(attempt, index), "index": index, "sampling": sampling(index)}
        statement = (
            upsert(ModelCallRow).values(**values).on_conflict_do_nothing().returning(ModelCallRow.index)
        )
        # A concurrent call of this attempt may have taken the index since it was read; then try the next.
        if session.scalar(statement) is not None:
            return index


def reclaim(session: Session, call: CallId, owner: str, dead_prefix: str, ttl_s: float) -> bool:
    """Take the lease of an in-flight call whose gateway is gone; its index and seed stay. False if not gone.

    A gateway is gone if its owner name starts with ``dead_prefix`` (an earlier process on our own port) or
    if the lease has expired. Within one TTL after Postgres started no lease counts as expired, because its
    owner could not renew it while Postgres was down.
    """
    ttl = timedelta(seconds=ttl_s)
    settled = func.pg_postmaster_start_time() < func.now() - ttl
    expired = and_(ModelCallRow.lease_expires_at < func.now(), settled)
    dead = and_(
        ModelCallRow.lease_owner.startswith(dead_prefix, autoescape=True), ModelCallRow.lease_owner != owner
    )
    taken = session.execute(
        update(ModelCallRow)
        .where(ModelCallRow.id == call, ModelCallRow.status == CallStatus.IN_FLIGHT)
        # A call that is ours already counts as reclaimed, so that a repeated transaction succeeds.
        .where(or_(expired, dead, ModelCallRow.lease_owner == owner))
        .values(lease_owner=owner, lease_expires_at=func.now() + ttl)
        .returning(ModelCallRow.id)
    )
    return taken.first() is not None


def renew(session: Session, owner: str, held: Sequence[CallId], ttl_s: float) -> None:
    """Extend the leases of those calls in ``held`` that are in flight and belong to ``owner``."""
    mine = select(ModelCallRow.id).where(
        ModelCallRow.id.in_(held),
        ModelCallRow.lease_owner == owner,
        ModelCallRow.status == CallStatus.IN_FLIGHT,
    )
    # A locked row belongs to a call that is ending: waiting for it in the order of this list could deadlock.
    free = mine.with_for_update(skip_locked=True).cte()
    session.execute(
        update(ModelCallRow)
        .where(ModelCallRow.id == free.c.id)
        .values(lease_expires_at=func.now() + timedelta(seconds=ttl_s))
    )


def commit(
    session: Session,
    call: CallId,
    attempt: AttemptId,
    owner: str,
    new_nodes: Sequence[NewNode],
    outcome: Outcome,
) -> bool:
    """Write the nodes and commit the call in this transaction. False if the call is not ours and in flight.

    `db.recording` writes the same rows for many calls at once: change both together. Raises Fenced if the
    attempt is sealed, IntegrityError if another gateway used a node's index.
    """
    attempts.lock_open(session, attempt)
    held = select(ModelCallRow.id).where(
        ModelCallRow.id == call,
        ModelCallRow.lease_owner == owner,
        ModelCallRow.status == CallStatus.IN_FLIGHT,
    )
    if session.scalar(held.with_for_update()) is None:
        return False
    session.execute(insert(TreeNodeRow), [_node_values(node, attempt, call) for node in new_nodes])
    # The ``*_node`` fields are indexes; their columns hold ids.
    values = {name: getattr(outcome, name) for name in Outcome.__slots__ if not name.endswith("_node")}
    session.execute(
        update(ModelCallRow)
        .where(ModelCallRow.id == call)
        .values(
            status=CallStatus.COMMITTED,
            committed_at=func.now(),
            context_node_id=node_id(attempt, outcome.context_node),
            sampled_node_id=node_id(attempt, outcome.sampled_node),
            lease_owner=None,
            lease_expires_at=None,
            **values,
        )
    )
    return True


def fail(session: Session, call: CallId, owner: str, failure: str) -> None:
    """Mark an in-flight call as failed. A committed call stays as it is."""
    session.execute(
        update(ModelCallRow)
        .where(
            ModelCallRow.id == call,
            ModelCallRow.lease_owner == owner,
            ModelCallRow.status == CallStatus.IN_FLIGHT,
        )
        .values(status=CallStatus.FAILED, failure=failure, lease_owner=None, lease_expires_at=None)
    )


def mark_delivered(session: Session, delivered: Sequence[CallId]) -> None:
    """Record that these answers were written to their clients in full; a repeat keeps the first time.

    The commit does not wait for the disk. If a crash of Postgres undoes it, a repeated request merely
    counts as a retry and gets the recorded answer.
    """
    session.execute(text("SET LOCAL synchronous_commit = off"))
    session.execute(
        update(ModelCallRow)
        .where(ModelCallRow.id.in_(delivered), ModelCallRow.delivered_at.is_(None))
        .values(delivered_at=func.now())
    )


def _node_values(node: NewNode, attempt: AttemptId, call: CallId) -> dict[str, Any]:
    values = {name: getattr(node, name) for name in NewNode.__slots__ if name != "parent"}
    return values | {
        "id": node_id(attempt, node.index),
        "attempt_id": attempt,
        "call_id": call,
        "parent_id": None if node.parent is None else node_id(attempt, node.parent),
        "num_tokens": len(node.token_ids) // 4,  # int32
    }
