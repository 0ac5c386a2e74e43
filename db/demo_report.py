"""Read models of the demo: what it prints besides the run's summary."""

from dataclasses import dataclass

from sqlalchemy import distinct, func, select
from sqlalchemy.orm import Session

from db.models import (
    BatchRow,
    ExecutionRow,
    ModelCallRow,
    QueryGroupRow,
    RewardRow,
    TaskRow,
    TrajectoryRow,
    TreeNodeRow,
)
from gyre.contracts.lifecycle import BatchStatus, Disposition, ExecutionStatus, Purpose


@dataclass(frozen=True)
class HeldoutOutcome:
    """One held-out execution. ``reward`` is None while it is not scored, which is not a zero."""

    task: str
    purpose: Purpose
    phase: str
    disposition: Disposition | None
    reward: float | None


@dataclass(frozen=True)
class Rollouts:
    """Execution counts of one part of the run: ``before``, ``train`` or ``after``."""

    dispatched: int
    done: int


@dataclass(frozen=True)
class Trained:
    """Counts over the trained batches, for calls of one role."""

    rollouts: int
    """Executions with a target of this role."""
    paths: int
    """Selected paths with a target of this role; a path that holds two roles counts for both."""
    targets: int
    """Sampled tokens."""


def rollouts(session: Session, run: str) -> dict[str, Rollouts]:
    """Count executions per part of the run, greedy ones included."""
    part = func.coalesce(QueryGroupRow.phase, Purpose.TRAIN.value)
    done = func.count().filter(ExecutionRow.status == ExecutionStatus.TERMINAL)
    query = (
        select(part, func.count(), done)
        .join(ExecutionRow, ExecutionRow.group_id == QueryGroupRow.id)
        .where(QueryGroupRow.run_id == run)
        .group_by(part)
    )
    counted = {str(name): Rollouts(total, ended) for name, total, ended in session.execute(query)}
    return {name: counted.get(name, Rollouts(0, 0)) for name in ("before", "train", "after")}


def heldout_outcomes(session: Session, run: str) -> list[HeldoutOutcome]:
    """Return every held-out execution, sampled and greedy, before and after training."""
    query = (
        select(
            TaskRow.name,
            QueryGroupRow.purpose,
            QueryGroupRow.phase,
            ExecutionRow.disposition,
            RewardRow.value,
        )
        .select_from(ExecutionRow)
        .join(QueryGroupRow, QueryGroupRow.id == ExecutionRow.group_id)
        .join(TaskRow, TaskRow.id == QueryGroupRow.task_id)
        .outerjoin(RewardRow, RewardRow.id == ExecutionRow.reward_id)
        .where(ExecutionRow.run_id == run, QueryGroupRow.purpose != Purpose.TRAIN)
        .order_by(QueryGroupRow.index, ExecutionRow.index)
    )
    return [
        HeldoutOutcome(
            task, Purpose(purpose), str(phase), Disposition(disposed) if disposed else None, reward
        )
        for task, purpose, phase, disposed, reward in session.execute(query)
    ]


def trained_roles(session: Session, run: str) -> dict[str, Trained]:
    """Count what was trained, per role of the call that sampled it; roles without a target are left out."""
    targets = select(
        TrajectoryRow.id, func.jsonb_array_elements_text(TrajectoryRow.target_node_ids).label("node_id")
    ).subquery()
    query = (
        select(
            ModelCallRow.role,
            func.count(distinct(TrajectoryRow.execution_id)),
            func.count(distinct(TrajectoryRow.id)),
            func.sum(TreeNodeRow.num_tokens),
        )
        .select_from(TrajectoryRow)
        .join(BatchRow, BatchRow.id == TrajectoryRow.batch_id)
        .join(targets, targets.c.id == TrajectoryRow.id)
        .join(TreeNodeRow, TreeNodeRow.id == targets.c.node_id)
        .join(ModelCallRow, ModelCallRow.id == TreeNodeRow.call_id)
        .where(BatchRow.run_id == run, BatchRow.status == BatchStatus.TRAINED)
        .group_by(ModelCallRow.role)
    )
    return {role: Trained(some, paths, int(tokens)) for role, some, paths, tokens in session.execute(query)}
