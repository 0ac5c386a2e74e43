"""The task and configuration that harnesses and evaluators need."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from db.models import AttemptRow, ExecutionRow, QueryGroupRow, RunConfigRow, RunRow, TaskRow
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import AttemptId, ExecutionId
from gyre.contracts.lifecycle import AttemptStatus


@dataclass(frozen=True)
class TaskOfExecution:
    """An execution's task, with the newest configuration and the secret of its run."""

    path: str
    sha256: str
    resolved: dict[str, Any]
    secret: bytes


def task_of(session: Session, execution: ExecutionId) -> TaskOfExecution:
    """Return the execution's task. Raises BadInput for an unknown execution."""
    query = (
        select(TaskRow.path, TaskRow.sha256, RunConfigRow.resolved, RunRow.secret)
        .join(QueryGroupRow, QueryGroupRow.task_id == TaskRow.id)
        .join(ExecutionRow, ExecutionRow.group_id == QueryGroupRow.id)
        .join(RunRow, RunRow.id == ExecutionRow.run_id)
        .join(RunConfigRow, RunConfigRow.run_id == RunRow.id)
        .where(ExecutionRow.id == execution)
        .order_by(RunConfigRow.revision.desc())
        .limit(1)
    )
    row = session.execute(query).first()
    if row is None:
        raise BadInput(f"{execution}: no such execution")
    return TaskOfExecution(path=row.path, sha256=row.sha256, resolved=row.resolved, secret=row.secret)


def is_open(session: Session, attempt: AttemptId) -> bool:
    """Return whether the attempt is open. It takes no lock, so the answer may be out of date at once."""
    return session.scalar(select(AttemptRow.status).where(AttemptRow.id == attempt)) == AttemptStatus.OPEN
