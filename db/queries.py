"""Read models of the command line: what `gyre show`, `groups` and `rollouts` print."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Executable, case, cast, func, select
from sqlalchemy.orm import Session

from db import groups as group_rows
from db import run_state
from db.models import (
    Attempt,
    Batch,
    BatchExecution,
    Blob,
    Checkpoint,
    Execution,
    ModelCall,
    PolicyVersion,
    QueryGroup,
    Reward,
    Run,
    Task,
)
from gyre.contracts.lifecycle import (
    AttemptStatus,
    BatchStatus,
    BlobStatus,
    CallStatus,
    Disposition,
    ExecutionStatus,
    GroupStatus,
    Purpose,
    RunStatus,
)

Record = dict[str, Any]
"""Column name -> value; the keys are those of ``--json``."""


@dataclass(frozen=True)
class RunSummary:
    run: str
    status: str
    failure: str | None
    created_at: datetime
    finished_at: datetime | None
    updates: int
    """Completed: their policy version has its row."""
    policy_version: int
    mean_reward: float | None
    """Of the newest trained batch, as its executions earned it."""
    account: dict[str, int]
    """Train groups: dispatched = trained + ready + running + dropped; ready includes those in a batch."""
    dispositions: dict[str, int]
    """Terminal executions of every purpose."""
    running: int
    """Executions in progress, of every purpose; none once the run has ended, whatever rows it left."""


def summarise(session: Session, run: str) -> RunSummary | None:
    """One consistent look at a run, or None if there is no such run."""
    row = session.get(Run, run)
    if row is None:
        return None
    version = run_state.newest_version(session, run)
    newest_mean = mean_rewards(session, run, last=1)
    dispositions = _count(session, Execution.disposition, Execution.run_id == run)
    return RunSummary(
        run=run,
        status=row.status,
        failure=row.failure,
        created_at=row.created_at,
        finished_at=row.finished_at,
        updates=version,
        policy_version=version,
        mean_reward=newest_mean[0] if newest_mean else None,
        account=_account(session, run),
        dispositions={each.value: dispositions.get(each.value, 0) for each in Disposition},
        running=0 if row.status in run_state.TERMINAL else _num_running(session, run),
    )


def _num_running(session: Session, run: str) -> int:
    return _number(session, Execution, Execution.run_id == run, Execution.status == ExecutionStatus.RUNNING)


def records(session: Session, query: Executable) -> list[Record]:
    """The rows of a query."""
    return [dict(row) for row in session.execute(query).mappings()]


def _count(session: Session, column: Any, *where: ColumnElement[bool]) -> dict[str, int]:
    rows = session.execute(select(column, func.count()).where(*where).group_by(column))
    return {str(value): int(number) for value, number in rows}


def _account(session: Session, run: str) -> dict[str, int]:
    counts = _count(session, QueryGroup.status, QueryGroup.run_id == run, QueryGroup.purpose == Purpose.TRAIN)
    return {
        # Counted apart from its parts, so that a group in no known state shows as a difference.
        "dispatched": _num_train_groups(session, run),
        "trained": counts.get(GroupStatus.TRAINED, 0),
        "ready": counts.get(GroupStatus.READY, 0) + counts.get(GroupStatus.ASSIGNED, 0),
        "running": counts.get(GroupStatus.RUNNING, 0),
        "dropped": counts.get(GroupStatus.DROPPED, 0),
    }


def _num_train_groups(session: Session, run: str) -> int:
    """By index, which is dense: a lost row leaves a hole that no count of rows would show."""
    others = _number(session, QueryGroup, QueryGroup.run_id == run, QueryGroup.purpose != Purpose.TRAIN)
    return group_rows.next_index(session, run) - others


def mean_rewards(session: Session, run: str, last: int | None = None) -> list[float]:
    """Mean of the executions' own rewards in each trained batch, or in the ``last`` ones, oldest first.

    Under the permuted control a batch trains on other rewards; here stand the ones that were earned.
    """
    newest = (
        select(Batch.id, Batch.version)
        .where(Batch.run_id == run, Batch.status == BatchStatus.TRAINED)
        .order_by(Batch.version.desc())
        .limit(last)
        .subquery()
    )
    query = (
        select(func.avg(Reward.value))
        .select_from(newest)
        .join(BatchExecution, BatchExecution.batch_id == newest.c.id)
        .join(Execution, Execution.id == BatchExecution.execution_id)
        .join(Reward, Reward.id == Execution.reward_id)
        .group_by(newest.c.version)
        .order_by(newest.c.version)
    )
    return [float(mean) for mean in session.scalars(query)]


def checks(session: Session, summary: RunSummary) -> dict[str, bool | None]:
    """Invariants that rows alone can show; None for one about an end that the run has not come to."""
    ended, run = summary.status in run_state.TERMINAL, summary.run
    finished = summary.status == RunStatus.FINISHED
    account = summary.account
    parts = sum(value for key, value in account.items() if key != "dispatched")
    undisposed = _number(session, Execution, Execution.run_id == run, Execution.disposition.is_(None))
    open_attempts = _number(session, Attempt, Attempt.run_id == run, Attempt.status == AttemptStatus.OPEN)
    in_flight = _number(
        session,
        ModelCall,
        ModelCall.run_id == run,
        ModelCall.status == CallStatus.IN_FLIGHT,
        ModelCall.attempt_id.in_(select(Attempt.id).where(Attempt.status == AttemptStatus.SEALED)),
    )
    return {
        "account_balances": account["dispatched"] == parts,
        "every_execution_disposed": undisposed == 0 if finished else None,
        "every_attempt_sealed": open_attempts == 0 if finished else None,
        "no_call_in_flight": in_flight == 0 if ended else None,
        "every_version_stored": _num_unstored_versions(session, run) == 0,
    }


def _number(session: Session, table: Any, *where: ColumnElement[bool]) -> int:
    return session.scalar(select(func.count()).select_from(table).where(*where)) or 0


def _num_unstored_versions(session: Session, run: str) -> int:
    """Policy versions whose checkpoint is missing or whose object no row vouches for."""
    stored = (
        select(Checkpoint.id)
        .join(Blob, Blob.key == Checkpoint.weights_key)
        .where(Checkpoint.run_id == run, Blob.status == BlobStatus.CONFIRMED)
    )
    return _number(
        session, PolicyVersion, PolicyVersion.run_id == run, PolicyVersion.checkpoint_id.not_in(stored)
    )


def groups(session: Session, run: str) -> list[Record]:
    """A row for each group: id, task, purpose, phase, status, drop_reason, policy_version, batch_id,
    executions, scored, placeholder, excluded, mean_reward."""
    scored = {
        each.value: func.count(case((Execution.disposition == each.value, 1))).label(each.value)
        for each in Disposition
    }
    query = (
        select(
            QueryGroup.id,
            Task.name.label("task"),
            QueryGroup.purpose,
            QueryGroup.phase,
            QueryGroup.status,
            QueryGroup.drop_reason,
            QueryGroup.policy_version,
            QueryGroup.batch_id,
            func.count(Execution.id).label("executions"),
            *scored.values(),
            func.avg(Reward.value).label("mean_reward"),
        )
        .join(Task, Task.id == QueryGroup.task_id)
        .outerjoin(Execution, Execution.group_id == QueryGroup.id)
        .outerjoin(Reward, Reward.id == Execution.reward_id)
        .where(QueryGroup.run_id == run)
        .group_by(QueryGroup.id, Task.name)
        .order_by(QueryGroup.index)
    )
    return records(session, query)


def rollouts(session: Session, run: str) -> list[Record]:
    """A row for each execution: id, task, purpose, status, disposition, reward, attempts, calls,
    sampled_tokens, end_reason (of the last attempt), detail."""
    committed = (
        select(func.count())
        .where(ModelCall.execution_id == Execution.id, ModelCall.status == CallStatus.COMMITTED)
        .correlate(Execution)
    )
    total = cast(func.coalesce(func.sum(ModelCall.num_output_tokens), 0), BigInteger)
    attempts = select(func.count()).where(Attempt.execution_id == Execution.id).correlate(Execution)
    last_end = (
        select(Attempt.end_reason)
        .where(Attempt.execution_id == Execution.id)
        .order_by(Attempt.number.desc())
        .limit(1)
        .correlate(Execution)
    )
    query = (
        select(
            Execution.id,
            Task.name.label("task"),
            QueryGroup.purpose,
            Execution.status,
            Execution.disposition,
            Reward.value.label("reward"),
            attempts.scalar_subquery().label("attempts"),
            committed.scalar_subquery().label("calls"),
            committed.with_only_columns(total).scalar_subquery().label("sampled_tokens"),
            last_end.scalar_subquery().label("end_reason"),
            Execution.detail,
        )
        .join(QueryGroup, QueryGroup.id == Execution.group_id)
        .join(Task, Task.id == QueryGroup.task_id)
        .outerjoin(Reward, Reward.id == Execution.reward_id)
        .where(Execution.run_id == run)
        .order_by(QueryGroup.index, Execution.index)
    )
    return records(session, query)


def execution_exists(session: Session, execution: str) -> bool:
    return session.get(Execution, execution) is not None
