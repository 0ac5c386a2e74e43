"""Query groups: dispatch, readiness, and the counts that a run's decisions rest on."""

from collections.abc import Sequence

from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import ExecutionRow, QueryGroupRow, RunRow, TaskRow
from gyre.contracts.ids import GroupId, RunId, execution_id, group_id
from gyre.contracts.lifecycle import GROUP, Disposition, GroupStatus, Purpose, advance
from gyre.rules.groups import group_outcome


def lock_run(session: Session, run: str) -> None:
    """Serialise the run's decisions: hold an advisory lock until the transaction ends."""
    # Two names with equal hashes merely wait for each other.
    session.execute(text("SELECT pg_advisory_xact_lock(hashtext(:run))"), {"run": run})


def next_index(session: Session, run: str) -> int:
    """Return the index of the run's next group. Groups of every purpose are numbered without gaps."""
    highest = session.scalar(select(func.max(QueryGroupRow.index)).where(QueryGroupRow.run_id == run))
    return 0 if highest is None else highest + 1


def num_train_groups(session: Session, run: str) -> int:
    """Count the train groups dispatched so far, in any status."""
    return (
        session.scalar(
            select(func.count()).where(QueryGroupRow.run_id == run, QueryGroupRow.purpose == Purpose.TRAIN)
        )
        or 0
    )


def dispatch(
    session: Session,
    run: RunId,
    task: str,
    *,
    index: int,
    size: int,
    version: int,
    purpose: Purpose = Purpose.TRAIN,
    phase: str | None = None,
) -> None:
    """Write a group and its executions; workflows are started from these rows. A repeat changes nothing."""
    name = group_id(run, index)
    values = {"id": name, "run_id": run, "index": index, "task_id": task, "size": size}
    session.execute(
        insert(QueryGroupRow)
        .values(**values, purpose=purpose, phase=phase, policy_version=version, status=GroupStatus.RUNNING)
        .on_conflict_do_nothing()
    )
    rows = [
        {"id": execution_id(name, i), "group_id": name, "run_id": run, "index": i, "status": "pending"}
        for i in range(size)
    ]
    session.execute(insert(ExecutionRow).on_conflict_do_nothing(), rows)


STARTS = 32
"""Most groups per decision: with the longest task names a file system allows it stays below 16 KiB."""


def to_start(
    session: Session, run: str, after: int, limit: int = STARTS
) -> Sequence[tuple[QueryGroupRow, str]]:
    """Return running groups of index greater than ``after``, each with its task's name, in order."""
    query = (
        select(QueryGroupRow, TaskRow.name)
        .join(TaskRow, TaskRow.id == QueryGroupRow.task_id)
        .where(
            QueryGroupRow.run_id == run,
            QueryGroupRow.index > after,
            QueryGroupRow.status == GroupStatus.RUNNING,
        )
        .order_by(QueryGroupRow.index)
        .limit(limit)
    )
    return [(row[0], row[1]) for row in session.execute(query)]


def commit_outcome(session: Session, group: GroupId) -> tuple[QueryGroupRow, list[Disposition | None]]:
    """Settle the group's status from its executions' dispositions and return both.

    A settled group is left as it is.
    """
    row = session.get_one(QueryGroupRow, group, with_for_update=True)
    found = session.scalars(select(ExecutionRow.disposition).where(ExecutionRow.group_id == group)).all()
    dispositions = [None if each is None else Disposition(each) for each in found]
    status = GroupStatus(row.status)
    outcome = group_outcome(dispositions, row.size)
    if status is GroupStatus.RUNNING and outcome is not GroupStatus.RUNNING:
        row.status = advance(GROUP, status, outcome)
        row.ready_at = func.now()
        row.drop_reason = "no execution was scored" if outcome is GroupStatus.DROPPED else None
    session.flush()
    return row, dispositions


def count_by_status(session: Session, run: str) -> dict[GroupStatus, int]:
    """Count train groups per status."""
    query = (
        select(QueryGroupRow.status, func.count())
        .where(QueryGroupRow.run_id == run, QueryGroupRow.purpose == Purpose.TRAIN)
        .group_by(QueryGroupRow.status)
    )
    return {GroupStatus(row[0]): row[1] for row in session.execute(query)}


def dropped_in_a_row(session: Session, run: str, *, limit: int) -> int:
    """Count the newest settled train groups that were dropped in a row, up to ``limit``.

    Groups dispatched before the last resume do not count: otherwise a run that failed for its dropped
    groups would fail again at once.
    """
    resumed_at = select(RunRow.resumed_at).where(RunRow.id == run).scalar_subquery()
    query = (
        select(QueryGroupRow.status)
        .where(
            QueryGroupRow.run_id == run,
            QueryGroupRow.purpose == Purpose.TRAIN,
            QueryGroupRow.status != GroupStatus.RUNNING,
            QueryGroupRow.dispatched_at >= func.coalesce(resumed_at, QueryGroupRow.dispatched_at),
        )
        .order_by(QueryGroupRow.index.desc())
        .limit(limit)
    )
    count = 0
    for status in session.scalars(query):
        if status != GroupStatus.DROPPED:
            break
        count += 1
    return count


def unfinished_executions(session: Session, run: str) -> int:
    """Count executions dispatched and not terminal, of any purpose: the waterlevel w."""
    query = select(func.count()).where(ExecutionRow.run_id == run, ExecutionRow.status != "terminal")
    return session.scalar(query) or 0


def phase_groups(session: Session, run: str, phase: str) -> list[GroupStatus]:
    """Return the status of each held-out group of a phase."""
    query = select(QueryGroupRow.status).where(
        QueryGroupRow.run_id == run, QueryGroupRow.phase == phase, QueryGroupRow.purpose != Purpose.TRAIN
    )
    return [GroupStatus(status) for status in session.scalars(query)]
