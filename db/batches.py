"""Batches: choose ready groups, freeze their rewards and store the trajectories, in one transaction."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from db.models import (
    AttemptRow,
    BatchExecutionRow,
    BatchRow,
    ExecutionRow,
    MicroStepRow,
    ModelCallRow,
    QueryGroupRow,
    RewardRow,
    SnapshotRow,
    TrajectoryRow,
    TreeNodeRow,
)
from gyre.contracts.ids import BatchId
from gyre.contracts.lifecycle import GROUP, Disposition, GroupStatus, NodeKind, Purpose, advance


@dataclass(frozen=True)
class ScoredExecution:
    """A scored execution of a ready group, with the reward it trains on."""

    execution_id: str
    group_id: str
    reward_id: str
    reward: float


@dataclass(frozen=True)
class BatchNode:
    """A tree node without its tokens, and the role of the call that introduced it."""

    execution_id: str
    id: str
    parent_id: str | None
    parent_offset: int
    position: int
    num_tokens: int
    sampled: bool
    role: str


def existing(session: Session, batch: BatchId) -> BatchRow | None:
    """Return the batch if an earlier try stored it, else None."""
    return session.get(BatchRow, batch)


def claim_ready_groups(session: Session, run: str, count: int) -> list[QueryGroupRow]:
    """Lock and return the ``count`` oldest ready train groups; an empty list if there are fewer."""
    query = (
        select(QueryGroupRow)
        .where(
            QueryGroupRow.run_id == run,
            QueryGroupRow.purpose == Purpose.TRAIN,
            QueryGroupRow.status == GroupStatus.READY,
        )
        .order_by(QueryGroupRow.index)
        .limit(count)
        .with_for_update()
    )
    groups = list(session.scalars(query))
    return groups if len(groups) == count else []


def scored_of(session: Session, groups: Iterable[QueryGroupRow]) -> list[ScoredExecution]:
    """Return the groups' scored executions with their current rewards, ordered by group and execution."""
    query = (
        select(ExecutionRow.id, ExecutionRow.group_id, RewardRow.id, RewardRow.value)
        .join(RewardRow, RewardRow.id == ExecutionRow.reward_id)
        .join(QueryGroupRow, QueryGroupRow.id == ExecutionRow.group_id)
        .where(ExecutionRow.group_id.in_([group.id for group in groups]))
        .where(ExecutionRow.disposition == Disposition.SCORED)
        .order_by(QueryGroupRow.index, ExecutionRow.index)
    )
    return [ScoredExecution(row[0], row[1], row[2], row[3]) for row in session.execute(query)]


def num_placeholders(session: Session, groups: Iterable[QueryGroupRow]) -> dict[str, int]:
    """Count placeholder executions per group; groups without any are left out."""
    query = select(ExecutionRow.group_id).where(
        ExecutionRow.group_id.in_([group.id for group in groups]),
        ExecutionRow.disposition == Disposition.PLACEHOLDER,
    )
    counts: dict[str, int] = defaultdict(int)
    for group in session.scalars(query):
        counts[group] += 1
    return dict(counts)


def nodes_of(session: Session, executions: Sequence[str]) -> dict[str, list[BatchNode]]:
    """Return the tree of each execution's scored attempt, which is its newest one with a snapshot."""
    later = aliased(AttemptRow)
    newest = (
        select(AttemptRow.execution_id, AttemptRow.id)
        .join(SnapshotRow, SnapshotRow.attempt_id == AttemptRow.id)
        .where(AttemptRow.execution_id.in_(executions))
        # No later attempt has a snapshot.
        .where(
            ~select(later.id)
            .join(SnapshotRow, SnapshotRow.attempt_id == later.id)
            .where(later.execution_id == AttemptRow.execution_id, later.number > AttemptRow.number)
            .exists()
        )
        .subquery()
    )
    query = (
        select(
            newest.c.execution_id,
            TreeNodeRow.id,
            TreeNodeRow.parent_id,
            TreeNodeRow.parent_offset,
            TreeNodeRow.position,
            TreeNodeRow.num_tokens,
            TreeNodeRow.kind,
            ModelCallRow.role,
        )
        .join(TreeNodeRow, TreeNodeRow.attempt_id == newest.c.id)
        .join(ModelCallRow, ModelCallRow.id == TreeNodeRow.call_id)
        .order_by(TreeNodeRow.attempt_id, TreeNodeRow.index)
    )
    trees: dict[str, list[BatchNode]] = defaultdict(list)
    for execution, name, parent, offset, position, tokens, kind, role in session.execute(query):
        sampled = kind == NodeKind.SAMPLED
        trees[execution].append(BatchNode(execution, name, parent, offset, position, tokens, sampled, role))
    return dict(trees)


def write(
    session: Session,
    batch: BatchRow,
    groups: Sequence[QueryGroupRow],
    executions: Sequence[BatchExecutionRow],
    trajectories: Sequence[TrajectoryRow],
    micro_steps: Sequence[MicroStepRow],
) -> None:
    """Store the batch and assign its groups. From here on it can be trained, and trained again."""
    # The other rows refer to the batch, so it goes first.
    session.add(batch)
    session.flush()
    for group in groups:
        group.status = advance(GROUP, GroupStatus(group.status), GroupStatus.ASSIGNED)
        group.batch_id = batch.id
    session.add_all([*executions, *trajectories, *micro_steps])
    session.flush()
