"""What an attempt's harness and an execution's evaluator have to know, and what an attempt recorded."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session, aliased

from db.models import Attempt, Execution, ModelCall, QueryGroup, Run, RunConfig, Task, TreeNode
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import AttemptId, ExecutionId
from gyre.contracts.lifecycle import CallStatus


@dataclass(frozen=True)
class TaskOfExecution:
    """Where the task lies, and the newest configuration of its run."""

    path: str
    sha256: str
    resolved: dict[str, Any]
    secret: bytes


@dataclass(frozen=True)
class AttemptCounts:
    """Committed model calls of an attempt and the leaves of its tree."""

    num_calls: int
    num_input_tokens: int
    num_output_tokens: int
    num_branches: int


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
    return session.scalar(select(Attempt.status).where(Attempt.id == attempt)) == "open"


def counts(session: Session, attempt: AttemptId) -> AttemptCounts:
    """What the attempt's committed calls add up to."""
    calls = session.execute(
        select(
            func.count(),
            func.coalesce(func.sum(ModelCall.num_input_tokens), 0),
            func.coalesce(func.sum(ModelCall.num_output_tokens), 0),
        ).where(ModelCall.attempt_id == attempt, ModelCall.status == CallStatus.COMMITTED)
    ).one()
    child = aliased(TreeNode)
    leaves = session.scalar(
        select(func.count())
        .select_from(TreeNode)
        .where(TreeNode.attempt_id == attempt, ~exists().where(child.parent_id == TreeNode.id))
    )
    return AttemptCounts(calls[0], int(calls[1]), int(calls[2]), leaves or 0)
