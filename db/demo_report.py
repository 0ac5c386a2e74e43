"""What the demo shows besides the run's summary, read from the rows of its run."""

from dataclasses import dataclass

from sqlalchemy import distinct, func, select
from sqlalchemy.orm import Session

from db.models import Batch, Execution, ModelCall, QueryGroup, Reward, Task, Trajectory, TreeNode
from gyre.contracts.lifecycle import BatchStatus, Disposition, ExecutionStatus, Purpose


@dataclass(frozen=True)
class Outcome:
    """One held-out execution. ``reward`` None: not scored (yet), which is not a zero."""

    task: str
    purpose: Purpose
    phase: str
    disposition: Disposition | None
    reward: float | None


@dataclass(frozen=True)
class Rollouts:
    """Executions of one part of the run: ``before``, ``train`` or ``after``."""

    dispatched: int
    done: int


@dataclass(frozen=True)
class Trained:
    """What the trained batches took from calls of one role."""

    rollouts: int
    """Executions with a target of this role."""
    paths: int
    """Selected paths with a target of this role; a path that holds two roles counts for both."""
    targets: int
    """Sampled tokens."""


def rollouts(session: Session, run: str) -> dict[str, Rollouts]:
    """By part of the run, greedy ones included."""
    part = func.coalesce(QueryGroup.phase, Purpose.TRAIN.value)
    done = func.count().filter(Execution.status == ExecutionStatus.TERMINAL)
    query = (
        select(part, func.count(), done)
        .join(Execution, Execution.group_id == QueryGroup.id)
        .where(QueryGroup.run_id == run)
        .group_by(part)
    )
    counted = {str(name): Rollouts(total, ended) for name, total, ended in session.execute(query)}
    return {name: counted.get(name, Rollouts(0, 0)) for name in ("before", "train", "after")}


def heldout_outcomes(session: Session, run: str) -> list[Outcome]:
    """Every held-out execution, sampled and greedy, before and after."""
    query = (
        select(Task.name, QueryGroup.purpose, QueryGroup.phase, Execution.disposition, Reward.value)
        .select_from(Execution)
        .join(QueryGroup, QueryGroup.id == Execution.group_id)
        .join(Task, Task.id == QueryGroup.task_id)
        .outerjoin(Reward, Reward.id == Execution.reward_id)
        .where(Execution.run_id == run, QueryGroup.purpose != Purpose.TRAIN)
        .order_by(QueryGroup.index, Execution.index)
    )
    return [
        Outcome(task, Purpose(purpose), str(phase), Disposition(disposed) if disposed else None, reward)
        for task, purpose, phase, disposed, reward in session.execute(query)
    ]


def trained_roles(session: Session, run: str) -> dict[str, Trained]:
    """By role of the call that sampled a target; roles without a target are left out."""
    targets = select(
        Trajectory.id, func.jsonb_array_elements_text(Trajectory.target_node_ids).label("node_id")
    ).subquery()
    query = (
        select(
            ModelCall.role,
            func.count(distinct(Trajectory.execution_id)),
            func.count(distinct(Trajectory.id)),
            func.sum(TreeNode.num_tokens),
        )
        .select_from(Trajectory)
        .join(Batch, Batch.id == Trajectory.batch_id)
        .join(targets, targets.c.id == Trajectory.id)
        .join(TreeNode, TreeNode.id == targets.c.node_id)
        .join(ModelCall, ModelCall.id == TreeNode.call_id)
        .where(Batch.run_id == run, Batch.status == BatchStatus.TRAINED)
        .group_by(ModelCall.role)
    )
    return {role: Trained(some, paths, int(tokens)) for role, some, paths, tokens in session.execute(query)}
