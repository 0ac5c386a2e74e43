"""Read models of the command line, printed by `gyre show`, `groups` and `rollouts`."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Executable, case, cast, func, select
from sqlalchemy.orm import Session

from db import groups as group_rows
from db import run_state
from db.models import (
    AttemptRow,
    BatchExecutionRow,
    BatchRow,
    BlobRow,
    CheckpointRow,
    ExecutionRow,
    ModelCallRow,
    PolicyVersionRow,
    QueryGroupRow,
    RewardRow,
    RunRow,
    TaskRow,
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
"""One row by column name. The names are keys of ``--json``, so they are stable."""


@dataclass(frozen=True)
class RunSummary:
    """The numbers of `gyre show`."""

    run: str
    status: str
    failure: str | None
    created_at: datetime
    finished_at: datetime | None
    updates: int
    """Completed updates: those whose policy version has its row."""
    policy_version: int
    mean_reward: float | None
    """Mean reward that the executions of the newest trained batch earned."""
    account: dict[str, int]
    """Train groups per status: dispatched = trained + ready + running + dropped. Ready includes groups that
    are in an open batch."""
    dispositions: dict[str, int]
    """Terminal executions of every purpose, per disposition."""
    running: int
    """Executions in progress, of every purpose; 0 once the run has ended, even if it left running rows."""


def summarise(session: Session, run: str) -> RunSummary | None:
    """Return the run's summary, or None if there is no such run."""
    row = session.get(RunRow, run)
    if row is None:
        return None
    version = run_state.newest_version(session, run)
    newest_mean = mean_rewards(session, run, last=1)
    dispositions = _count(session, ExecutionRow.disposition, ExecutionRow.run_id == run)
    running = _number(
        session, ExecutionRow, ExecutionRow.run_id == run, ExecutionRow.status == ExecutionStatus.RUNNING
    )
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
        running=0 if row.status in run_state.TERMINAL else running,
    )


def records(session: Session, query: Executable) -> list[Record]:
    """Return the rows of a query by column name."""
    return [dict(row) for row in session.execute(query).mappings()]


def _count(session: Session, column: Any, *where: ColumnElement[bool]) -> dict[str, int]:
    rows = session.execute(select(column, func.count()).where(*where).group_by(column))
    return {str(value): int(number) for value, number in rows}


def _account(session: Session, run: str) -> dict[str, int]:
    counts = _count(
        session, QueryGroupRow.status, QueryGroupRow.run_id == run, QueryGroupRow.purpose == Purpose.TRAIN
    )
    others = _number(
        session, QueryGroupRow, QueryGroupRow.run_id == run, QueryGroupRow.purpose != Purpose.TRAIN
    )
    return {
        # From the indexes, which have no gaps, and not from the rows: so that a lost row, or one of an
        # unknown status, unbalances the account.
        "dispatched": group_rows.next_index(session, run) - others,
        "trained": counts.get(GroupStatus.TRAINED, 0),
        "ready": counts.get(GroupStatus.READY, 0) + counts.get(GroupStatus.ASSIGNED, 0),
        "running": counts.get(GroupStatus.RUNNING, 0),
        "dropped": counts.get(GroupStatus.DROPPED, 0),
    }


def mean_rewards(session: Session, run: str, last: int | None = None) -> list[float]:
    """Return the mean reward of each trained batch, or of the ``last`` ones, oldest first.

    These are the rewards that executions earned; under the permuted control a batch trains on others.
    """
    newest = (
        select(BatchRow.id, BatchRow.version)
        .where(BatchRow.run_id == run, BatchRow.status == BatchStatus.TRAINED)
        .order_by(BatchRow.version.desc())
        .limit(last)
        .subquery()
    )
    query = (
        select(func.avg(RewardRow.value))
        .select_from(newest)
        .join(BatchExecutionRow, BatchExecutionRow.batch_id == newest.c.id)
        .join(ExecutionRow, ExecutionRow.id == BatchExecutionRow.execution_id)
        .join(RewardRow, RewardRow.id == ExecutionRow.reward_id)
        .group_by(newest.c.version)
        .order_by(newest.c.version)
    )
    return [float(mean) for mean in session.scalars(query)]


def checks(session: Session, summary: RunSummary) -> dict[str, bool | None]:
    """Check the invariants that rows alone can show; None for one that only holds at the end of a run."""
    ended, run = summary.status in run_state.TERMINAL, summary.run
    finished = summary.status == RunStatus.FINISHED
    account = summary.account
    parts = sum(value for key, value in account.items() if key != "dispatched")
    undisposed = _number(
        session, ExecutionRow, ExecutionRow.run_id == run, ExecutionRow.disposition.is_(None)
    )
    open_attempts = _number(
        session, AttemptRow, AttemptRow.run_id == run, AttemptRow.status == AttemptStatus.OPEN
    )
    in_flight = _number(
        session,
        ModelCallRow,
        ModelCallRow.run_id == run,
        ModelCallRow.status == CallStatus.IN_FLIGHT,
        ModelCallRow.attempt_id.in_(select(AttemptRow.id).where(AttemptRow.status == AttemptStatus.SEALED)),
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
    """Count policy versions without a checkpoint or without a confirmed object."""
    stored = (
        select(CheckpointRow.id)
        .join(BlobRow, BlobRow.key == CheckpointRow.weights_key)
        .where(CheckpointRow.run_id == run, BlobRow.status == BlobStatus.CONFIRMED)
    )
    return _number(
        session,
        PolicyVersionRow,
        PolicyVersionRow.run_id == run,
        PolicyVersionRow.checkpoint_id.not_in(stored),
    )


def groups(session: Session, run: str) -> list[Record]:
    """Return one row per group: id, task, purpose, phase, status, drop_reason, policy_version, batch_id,
    executions, scored, placeholder, excluded, mean_reward."""
    scored = {
        each.value: func.count(case((ExecutionRow.disposition == each.value, 1))).label(each.value)
        for each in Disposition
    }
    query = (
        select(
            QueryGroupRow.id,
            TaskRow.name.label("task"),
            QueryGroupRow.purpose,
            QueryGroupRow.phase,
            QueryGroupRow.status,
            QueryGroupRow.drop_reason,
            QueryGroupRow.policy_version,
            QueryGroupRow.batch_id,
            func.count(ExecutionRow.id).label("executions"),
            *scored.values(),
            func.avg(RewardRow.value).label("mean_reward"),
        )
        .join(TaskRow, TaskRow.id == QueryGroupRow.task_id)
        .outerjoin(ExecutionRow, ExecutionRow.group_id == QueryGroupRow.id)
        .outerjoin(RewardRow, RewardRow.id == ExecutionRow.reward_id)
        .where(QueryGroupRow.run_id == run)
        .group_by(QueryGroupRow.id, TaskRow.name)
        .order_by(QueryGroupRow.index)
    )
    return records(session, query)


def rollouts(session: Session, run: str) -> list[Record]:
    """Return one row per execution: id, task, purpose, status, disposition, reward, attempts, calls,
    sampled_tokens, end_reason (of the last attempt), detail."""
    committed = (
        select(func.count())
        .where(ModelCallRow.execution_id == ExecutionRow.id, ModelCallRow.status == CallStatus.COMMITTED)
        .correlate(ExecutionRow)
    )
    total = cast(func.coalesce(func.sum(ModelCallRow.num_output_tokens), 0), BigInteger)
    attempts = select(func.count()).where(AttemptRow.execution_id == ExecutionRow.id).correlate(ExecutionRow)
    last_end = (
        select(AttemptRow.end_reason)
        .where(AttemptRow.execution_id == ExecutionRow.id)
        .order_by(AttemptRow.number.desc())
        .limit(1)
        .correlate(ExecutionRow)
    )
    query = (
        select(
            ExecutionRow.id,
            TaskRow.name.label("task"),
            QueryGroupRow.purpose,
            ExecutionRow.status,
            ExecutionRow.disposition,
            RewardRow.value.label("reward"),
            attempts.scalar_subquery().label("attempts"),
            committed.scalar_subquery().label("calls"),
            committed.with_only_columns(total).scalar_subquery().label("sampled_tokens"),
            last_end.scalar_subquery().label("end_reason"),
            ExecutionRow.detail,
        )
        .join(QueryGroupRow, QueryGroupRow.id == ExecutionRow.group_id)
        .join(TaskRow, TaskRow.id == QueryGroupRow.task_id)
        .outerjoin(RewardRow, RewardRow.id == ExecutionRow.reward_id)
        .where(ExecutionRow.run_id == run)
        .order_by(QueryGroupRow.index, ExecutionRow.index)
    )
    return records(session, query)


def execution_exists(session: Session, execution: str) -> bool:
    """Return whether there is such an execution."""
    return session.get(ExecutionRow, execution) is not None
