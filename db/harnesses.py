"""What an attempt's harness and an execution's evaluator have to know."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from db.models import Attempt, Execution, QueryGroup, Run, RunConfig, Task
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import AttemptId, ExecutionId
from gyre.contracts.lifecycle import AttemptStatus


@dataclass(frozen=True)
class TaskOfExecution:
    """Where the task lies, and the newest configuration of its run."""

    path: str
    sha256: str
    resolved: dict[str, Any]
    secret: bytes


def task_of(session: Session, execution: ExecutionId) -> TaskOfExecution:
    """Raises BadInput for an execution that no run knows."""
    query = (
        select(Task.path, Task.sha256, RunConfig.resolved, Run.secret)
        .join(QueryGroup, QueryGroup.task_id == Task.id)
        .join(Execution, Execution.group_id == QueryGroup.id)
        .join(Run, Run.id == Execution.run_id)
        .join(RunConfig, RunConfig.run_id == Run.id)
        .where(Execution.id == execution)
        .order_by(RunConfig.revision.desc())
        .limit(1)
    )
    row = session.execute(query).first()
    if row is None:
        raise BadInput(f"{execution}: no such execution")
    return TaskOfExecution(path=row.path, sha256=row.sha256, resolved=row.resolved, secret=row.secret)


def is_open(session: Session, attempt: AttemptId) -> bool:
    """Whether the attempt may still be worked on; a look, not a lock."""
    return session.scalar(select(Attempt.status).where(Attempt.id == attempt)) == AttemptStatus.OPEN
