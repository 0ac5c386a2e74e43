"""A run's status, its resumption, and the counts of its groups."""

from sqlalchemy import update

from db import groups, run_state, runs
from db.models import QueryGroupRow, TaskRow
from db.session import Database, transaction
from gyre.contracts.ids import GroupId, RunId, task_id
from gyre.contracts.lifecycle import GroupStatus, RunStatus
from gyre.contracts.messages import Decision, GroupStart

RUN = RunId("r")
MANY = 80
"""Two batches of 40 groups: more than a query with a small fixed limit would count."""


def drop_groups(database: Database, first: int, count: int) -> None:
    with transaction(database) as session:
        for index in range(first, first + count):
            groups.dispatch(session, RUN, task_id(RUN, "a"), index=index, size=2, version=0)
        session.execute(update(QueryGroupRow).values(status=GroupStatus.DROPPED))


def dropped(database: Database) -> int:
    with transaction(database) as session:
        return groups.dropped_in_a_row(session, RUN, limit=MANY)


def advance(database: Database, status: RunStatus, failure: str | None = None) -> None:
    with transaction(database) as session:
        run_state.advance_status(session, RUN, status, failure=failure)


def test_a_run_that_failed_for_its_dropped_groups_can_be_resumed(database: Database, group: GroupId) -> None:
    drop_groups(database, 1, MANY)
    assert dropped(database) == MANY
    advance(database, RunStatus.FAILED, "the last 80 groups were all dropped")
    assert dropped(database) == MANY
    advance(database, RunStatus.RUNNING)
    assert dropped(database) == 0, "it would fail again at once"
    drop_groups(database, MANY + 1, 3)
    assert dropped(database) == 3


def test_a_repeated_status_changes_nothing(database: Database, group: GroupId) -> None:
    advance(database, RunStatus.FAILED, "why")
    with transaction(database) as session:
        first = runs.find(session, RUN)
    advance(database, RunStatus.FAILED, None)
    with transaction(database) as session:
        again = runs.find(session, RUN)
    assert first is not None
    assert again is not None
    assert (again.failure, again.finished_at) == ("why", first.finished_at)


def test_a_resumed_run_no_longer_counts_as_ended(database: Database, group: GroupId) -> None:
    advance(database, RunStatus.STOPPED)
    advance(database, RunStatus.RUNNING)
    with transaction(database) as session:
        row = runs.find(session, RUN)
        assert row is not None
        assert (row.failure, row.finished_at) == (None, None)
        assert runs.ended_for_s(session, RUN) == 0


def test_a_decision_with_the_longest_task_names_is_below_16_kib(database: Database, group: GroupId) -> None:
    name = "t" * 255
    with transaction(database) as session:
        session.add(
            TaskRow(id=task_id(RUN, name), run_id=RUN, name=name, split="train", path="p", sha256="s")
        )
        session.flush()
        for index in range(1, 100):
            groups.dispatch(session, RUN, task_id(RUN, name), index=index, size=2, version=0)
    with transaction(database) as session:
        found = groups.to_start(session, RUN, 0)
    starts = [GroupStart(group_id=row.id, index=row.index, task=task, size=row.size) for row, task in found]
    assert starts
    assert len(Decision(kind="start", groups=starts).model_dump_json()) < 16 << 10
