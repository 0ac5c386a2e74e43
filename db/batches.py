"""Batches: which groups, which rewards, which trajectories, in one transaction."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from db.models import (
    Attempt,
    Batch,
    BatchExecution,
    Execution,
    MicroStep,
    ModelCall,
    QueryGroup,
    Reward,
    Snapshot,
    Trajectory,
    TreeNode,
)
from gyre.contracts.ids import BatchId
from gyre.contracts.lifecycle import GROUP, Disposition, GroupStatus, NodeKind, Purpose, advance


@dataclass(frozen=True)
class Scored:
    """A scored execution of a ready group."""

    execution_id: str
    group_id: str
    reward_id: str
    reward: float


@dataclass(frozen=True)
class NodeRow:
    """A tree node without its tokens."""

    execution_id: str
    id: str
    parent_id: str | None
    parent_offset: int
    position: int
    num_tokens: int
    sampled: bool
    role: str


def existing(session: Session, batch: BatchId) -> Batch | None:
    return session.get(Batch, batch)


def claim_ready_groups(session: Session, run: str, count: int) -> list[QueryGroup]:
    """The ``count`` oldest ready train groups, locked; empty if there are fewer."""
    query = (
        select(QueryGroup)
        .where(
            QueryGroup.run_id == run,
            QueryGroup.purpose == Purpose.TRAIN,
            QueryGroup.status == GroupStatus.READY,
        )
        .order_by(QueryGroup.index)
        .limit(count)
        .with_for_update()
    )
    groups = list(session.scalars(query))
    return groups if len(groups) == count else []


def scored_of(session: Session, groups: Iterable[QueryGroup]) -> list[Scored]:
    """Scored executions of the groups with their current rewards, in id order of group and execution."""
    query = (
        select(Execution.id, Execution.group_id, Reward.id, Reward.value)
        .join(Reward, Reward.id == Execution.reward_id)
        .join(QueryGroup, QueryGroup.id == Execution.group_id)
        .where(Execution.group_id.in_([group.id for group in groups]))
        .where(Execution.disposition == Disposition.SCORED)
        .order_by(QueryGroup.index, Execution.index)
    )
    return [Scored(row[0], row[1], row[2], row[3]) for row in session.execute(query)]


def num_placeholders(session: Session, groups: Iterable[QueryGroup]) -> dict[str, int]:
    """Placeholder executions by group."""
    query = select(Execution.group_id).where(
        Execution.group_id.in_([group.id for group in groups]),
        Execution.disposition == Disposition.PLACEHOLDER,
    )
    counts: dict[str, int] = defaultdict(int)
    for group in session.scalars(query):
        counts[group] += 1
    return dict(counts)


def nodes_of(session: Session, executions: Sequence[str]) -> dict[str, list[NodeRow]]:
    """Trees of the attempts that were scored, by execution: the newest attempt with a snapshot."""
    later = aliased(Attempt)
    newest = (
        select(Attempt.execution_id, Attempt.id)
        .join(Snapshot, Snapshot.attempt_id == Attempt.id)
        .where(Attempt.execution_id.in_(executions))
        .where(
            ~select(later.id)
            .join(Snapshot, Snapshot.attempt_id == later.id)
            .where(later.execution_id == Attempt.execution_id, later.number > Attempt.number)
            .exists()
        )
        .subquery()
    )
    query = (
        select(
            newest.c.execution_id,
            TreeNode.id,
            TreeNode.parent_id,
            TreeNode.parent_offset,
            TreeNode.position,
            TreeNode.num_tokens,
            TreeNode.kind,
            ModelCall.role,
        )
        .join(TreeNode, TreeNode.attempt_id == newest.c.id)
        .join(ModelCall, ModelCall.id == TreeNode.call_id)
        .order_by(TreeNode.attempt_id, TreeNode.index)
    )
    trees: dict[str, list[NodeRow]] = defaultdict(list)
    for execution, name, parent, offset, position, tokens, kind, role in session.execute(query):
        sampled = kind == NodeKind.SAMPLED
        trees[execution].append(NodeRow(execution, name, parent, offset, position, tokens, sampled, role))
    return dict(trees)


def write(
    session: Session,
    batch: Batch,
    groups: Sequence[QueryGroup],
    executions: Sequence[BatchExecution],
    trajectories: Sequence[Trajectory],
    micro_steps: Sequence[MicroStep],
) -> None:
    """Store the batch and assign its groups: from here on it can be trained, and trained again."""
    session.add(batch)
    session.flush()
    for group in groups:
        group.status = advance(GROUP, GroupStatus(group.status), GroupStatus.ASSIGNED)
        group.batch_id = batch.id
    session.add_all([*executions, *trajectories, *micro_steps])
    session.flush()
