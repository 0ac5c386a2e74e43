"""What the demo shows besides the run's summary, read from the rows of its run."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.models import Execution, QueryGroup, Reward, Task
from gyre.contracts.lifecycle import Disposition, ExecutionStatus, Purpose


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
