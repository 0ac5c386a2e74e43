"""Batched writes: a member that fails does not affect the others."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from db import attempts, calls, executions, recording, run_state, runs
from db.direct import Statement
from db.models import ExecutionRow, ModelCallRow
from db.session import transaction
from gateway.batches import Batches
from gateway.live_attempt import load_attempt
from gateway.recorder import Recorder
from gateway.store import Store
from gyre.contracts.engine import SamplingParams
from gyre.contracts.errors import Fenced
from gyre.contracts.ids import AttemptId, ExecutionId, RunId, attempt_id, call_id
from gyre.contracts.lifecycle import EndReason, NodeKind, RunStatus
from gyre.trajectory.arrays import as_ids, as_logprobs
from tests.gateway.conftest import World

OWNER = "here:1/me"
NEW = calls.NewCall("openai", "main", "k", {"temperature": 1}, 3, 0, "s")


@pytest.fixture
def many(world: World) -> list[AttemptId]:
    """Four open attempts."""
    with transaction(world.database) as session:
        for index in range(1, 4):
            name = ExecutionId(f"run/r/group/0/rollout/{index}")
            session.add(ExecutionRow(id=name, group_id="run/r/group/0", run_id="r", index=index))
            session.flush()
            attempts.open_attempt(session, name, 1, "here")
    return [attempt_id(ExecutionId(f"run/r/group/0/rollout/{index}"), 1) for index in range(4)]


@pytest.fixture
def store(world: World) -> Iterator[Store]:
    made = Store(world.database, hold_s=10)
    yield made
    made.close()


def begin_of(attempt: AttemptId, index: int = 0) -> recording.Begin:
    return recording.Begin(attempt, index, NEW, {"sampling_seed": (1 << 63) - 1})


def commit_of(attempt: AttemptId, index: int = 0) -> recording.Commit:
    """Return the commit of a call with three context tokens and an answer of two."""
    ids = as_ids([1, 2, 3]).tobytes()
    context = calls.NewNode(0, None, 0, 0, NodeKind.CONTEXT, ids)
    sampled = calls.NewNode(
        1, 0, 3, 3, NodeKind.SAMPLED, ids[:8], as_logprobs([-1.5, -0.25]).tobytes(), [[7, 2]], 0, "stop", "m"
    )
    outcome = calls.Outcome(0, 3, 1, 2, 1, 0, "stop", "o", {"text": "é"}, "run/r/cell/0", 5)
    return recording.Commit(call_id(attempt, index), attempt, [context, sampled], outcome)


def execute(connection: Connection, statement: Statement) -> set[str]:
    """Return the calls whose rows the statement wrote."""
    return {row[0] for row in connection.exec_driver_sql(statement.sql, statement.values)}


def rows(world: World) -> dict[str, ModelCallRow]:
    return {row.attempt_id: row for row in world.read(lambda s: list(s.query(ModelCallRow)))}


def test_batched_and_single_writes_leave_equal_rows(world: World, many: list[AttemptId]) -> None:
    """They are equal in every column except times."""
    together, alone = many[0], many[1]
    committed = commit_of(alone)
    with world.database.begin() as connection:
        execute(connection, recording.begin([begin_of(together)], owner=OWNER, ttl_s=30))
        execute(connection, recording.commit([commit_of(together)], owner=OWNER))
    with transaction(world.database) as session:
        calls.begin(session, alone, NEW, lambda index: begin_of(alone).sampling, owner=OWNER, ttl_s=30)
        assert calls.commit(session, committed.call, alone, OWNER, committed.nodes, committed.outcome)

    def plain(row: object, attempt: AttemptId) -> dict:
        shown = {name: value for name, value in vars(row).items() if not name.startswith("_")}
        shown |= {"started_at": None, "committed_at": None, "execution_id": None}
        return {name: str(value).replace(attempt, "A") for name, value in shown.items()}

    def all_rows(session: Session, attempt: AttemptId) -> list[dict]:
        found = [*calls.calls(session, attempt), *calls.nodes(session, attempt)]
        return [plain(row, attempt) for row in found]

    assert world.read(lambda s: all_rows(s, together)) == world.read(lambda s: all_rows(s, alone))
    assert len(world.read(lambda s: all_rows(s, together))) == 3


def test_a_sealed_member_is_skipped(world: World, many: list[AttemptId]) -> None:
    with world.database.begin() as connection:
        execute(connection, recording.begin([begin_of(each) for each in many], owner=OWNER, ttl_s=30))
    with transaction(world.database) as session:
        attempts.seal(session, many[1], EndReason.EXITED)
    with world.database.begin() as connection:
        written = execute(connection, recording.commit([commit_of(each) for each in many], owner=OWNER))
    assert written == {call_id(each, 0) for each in many if each != many[1]}
    assert [rows(world)[each].status for each in many] == ["committed", "failed", "committed", "committed"]
    with world.database.begin() as connection:
        assert execute(
            connection, recording.begin([begin_of(each, 1) for each in many[:2]], owner=OWNER, ttl_s=30)
        ) == {call_id(many[0], 1)}


def test_a_locked_member_is_not_waited_for(world: World, many: list[AttemptId]) -> None:
    with transaction(world.database) as sealing, world.database.begin() as connection:
        attempts.seal(sealing, many[0], EndReason.EXITED)
        written = execute(
            connection, recording.begin([begin_of(each) for each in many], owner=OWNER, ttl_s=30)
        )
    assert written == {call_id(each, 0) for each in many[1:]}


FIRST = ExecutionId("run/r/group/0/rollout/0")
HOLDERS: dict[str, Callable[[Session], object]] = {
    "attempt opened": lambda s: attempts.open_attempt(s, FIRST, 2, "here"),
    "execution resumed": lambda s: executions.resume_point(s, FIRST, "here", 3),
    "run advanced": lambda s: run_state.advance_status(s, "r", RunStatus.RUNNING),
    "configuration revised": lambda s: runs.revise_config(s, RunId("r"), {"new": True}, "f"),
    "run stopped": lambda s: run_state.mark_stopped(s, RunId("r")),
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_a_held_execution_or_run_is_not_waited_for(
    world: World, many: list[AttemptId], holder: Callable[[Session], object]
) -> None:
    """A call's foreign keys need shared locks on these rows' keys, and no writer of the rows refuses them."""
    with transaction(world.database) as holding, world.database.begin() as connection:
        holder(holding)
        holding.flush()
        connection.exec_driver_sql("SET LOCAL lock_timeout = '2s'")
        written = execute(
            connection, recording.begin([begin_of(each) for each in many], owner=OWNER, ttl_s=30)
        )
    assert written == {call_id(each, 0) for each in many}


def test_a_call_of_another_gateway_is_left_alone(world: World, many: list[AttemptId]) -> None:
    with world.database.begin() as connection:
        execute(connection, recording.begin([begin_of(many[0])], owner="there:1/other", ttl_s=30))
        assert execute(connection, recording.commit([commit_of(many[0])], owner=OWNER)) == set()
        assert execute(connection, recording.begin([begin_of(many[0])], owner=OWNER, ttl_s=30)) == set()
    assert rows(world)[many[0]].lease_owner == "there:1/other"


def sampling(index: int) -> SamplingParams:
    return SamplingParams(sampling_seed=index)


def test_one_fenced_begin_fails_alone(world: World, many: list[AttemptId], store: Store) -> None:
    """Four calls begin at once: three are recorded, and the one of a sealed attempt is Fenced."""
    with transaction(world.database) as session:
        attempts_live = [load_attempt(session, each) for each in many]
    with transaction(world.database) as session:
        attempts.seal(session, many[2], EndReason.EXITED)

    async def begin_all(recorder: Recorder) -> list[int | BaseException]:
        begins = (recorder.begin(live, live.take_index(), NEW, sampling) for live in attempts_live)
        return await asyncio.gather(*begins, return_exceptions=True)

    first, second, fenced, last = asyncio.run(begin_all(Recorder(store, "here:1")))
    assert (first, second, last) == (0, 0, 0)
    assert isinstance(fenced, Fenced)
    assert set(rows(world)) == {many[0], many[1], many[3]}


def test_concurrent_calls_of_one_attempt_get_distinct_indexes(world: World, store: Store) -> None:
    with transaction(world.database) as session:
        live = load_attempt(session, world.attempt)

    async def begin_all(recorder: Recorder) -> list[int]:
        return await asyncio.gather(
            *(recorder.begin(live, live.take_index(), NEW, sampling) for _ in range(5))
        )

    assert sorted(asyncio.run(begin_all(Recorder(store, "here:1")))) == list(range(5))
    assert [call.sampling["sampling_seed"] for call in world.calls()] == list(range(5))


def test_a_faulty_member_is_left_to_a_single_write(world: World, many: list[AttemptId], store: Store) -> None:
    """With a text that Postgres refuses, the statement writes nothing, and no other call sees its error."""
    bad = replace(begin_of(many[0]), new=replace(NEW, role="\0"))

    async def put(items: list[recording.Begin]) -> list[bool]:
        batches = Batches[recording.Begin](store, partial(recording.begin, owner=OWNER, ttl_s=30), "begin")
        return await asyncio.gather(*(batches.put(item) for item in items))

    assert asyncio.run(put([bad, begin_of(many[1])])) == [False, False]
    assert asyncio.run(put([begin_of(many[1])])) == [True]


def test_a_deadlock_is_not_postgres_away(
    world: World, many: list[AttemptId], caplog: pytest.LogCaptureFixture
) -> None:
    """A deadlock is not retried as an outage: all members are left to single writes, and the log says so."""
    tries: list[int] = []

    def write(begins: Sequence[recording.Begin]) -> Statement:
        tries.append(len(begins))
        return Statement("DO $$ BEGIN RAISE EXCEPTION SQLSTATE '40P01'; END $$", {})

    async def put(store: Store) -> list[bool]:
        batches = Batches[recording.Begin](store, write, "begin")
        return await asyncio.gather(*(batches.put(begin_of(each)) for each in many))

    store = Store(world.database, hold_s=2)
    assert asyncio.run(put(store)) == [False] * 4
    assert tries == [4]
    assert "4 calls are written one by one (begin)" in caplog.text
    store.close()


def test_waiting_items_share_one_statement(world: World, many: list[AttemptId], store: Store) -> None:
    sizes: list[int] = []

    def write(begins: Sequence[recording.Begin]) -> Statement:
        sizes.append(len(begins))
        return recording.begin(begins, owner=OWNER, ttl_s=30)

    async def put() -> list[bool]:
        batches = Batches[recording.Begin](store, write, "begin")
        return await asyncio.gather(*(batches.put(begin_of(each)) for each in many))

    assert asyncio.run(put()) == [True] * 4
    assert sizes == [4]


def test_postgres_away_for_too_long_fails_all_members(world: World, many: list[AttemptId]) -> None:
    store = Store(create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing"), hold_s=0.2)

    async def put() -> list[object]:
        write = partial(recording.begin, owner=OWNER, ttl_s=30)
        batches = Batches[recording.Begin](store, write, "begin")
        return await asyncio.gather(*(batches.put(begin_of(each)) for each in many), return_exceptions=True)

    assert all(isinstance(each, OperationalError) for each in asyncio.run(put()))
    assert world.read(lambda s: s.scalar(text("SELECT count(*) FROM model_call"))) == 0
    store.close()
