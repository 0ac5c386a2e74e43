"""Attempts are fenced, executions resume at the stage where they stopped, dispositions are final."""

import threading

import pytest
from sqlalchemy import func
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from db import attempts, calls, evaluations, executions, groups, snapshots
from db.models import BlobRow, ExecutionRow, ModelCallRow, RewardRow
from db.session import Database, transaction
from gyre.contracts.errors import Fenced
from gyre.contracts.ids import (
    AttemptId,
    ExecutionId,
    GroupId,
    attempt_id,
    call_id,
    evaluation_id,
    execution_id,
    snapshot_id,
)
from gyre.contracts.lifecycle import Disposition, EndReason, GroupStatus
from gyre.contracts.messages import AttemptState


def resume(database: Database, execution: ExecutionId, budget: int = 2) -> AttemptState:
    with transaction(database) as session:
        return executions.resume_point(session, execution, "h", budget)


def seal(database: Database, attempt: str, failure: str | None = None) -> bool:
    with transaction(database) as session:
        return attempts.seal(session, AttemptId(attempt), EndReason.EXITED, failure=failure)


def save(database: Database, attempt: str) -> None:
    with transaction(database) as session:
        session.add(BlobRow(key="sha256/0", sha256="0", num_bytes=1, status="confirmed"))
        session.flush()
        snapshots.record(
            session, AttemptId(attempt), blob_key="sha256/0", num_files=1, num_bytes=1, manifest={}
        )


def reward(session: Session, execution: ExecutionId) -> str:
    """Insert a reward of 0 for the execution and return its id."""
    name = f"{execution}/reward"
    session.add(RewardRow(id=name, execution_id=execution, value=0.0))
    session.flush()
    return name


def test_an_execution_resumes_at_its_first_unfinished_stage(
    database: Database, execution: ExecutionId
) -> None:
    first = resume(database, execution)
    assert (first.number, first.stage) == (1, "provision")
    assert resume(database, execution) == first
    seal(database, first.attempt_id)
    assert resume(database, execution).stage == "snapshot"
    save(database, first.attempt_id)
    ready = resume(database, execution)
    assert (ready.stage, ready.snapshot_id, ready.next_evaluation) == (
        "evaluate",
        snapshot_id(AttemptId(first.attempt_id)),
        1,
    )


def test_a_failed_attempt_is_followed_by_another_until_the_budget_ends(
    database: Database, execution: ExecutionId
) -> None:
    """Reported failure: retries had no stable identity, so their records were mixed up."""
    for number in (1, 2):
        state = resume(database, execution)
        assert (state.number, state.attempt_id) == (number, attempt_id(execution, number))
        seal(database, state.attempt_id, "sandbox: gone")
    last = resume(database, execution)
    assert (last.stage, last.failure) == ("exhausted", "sandbox: gone")


def test_an_exhausted_execution_remembers_that_it_worked(database: Database, execution: ExecutionId) -> None:
    """A restarted workflow must exclude it, because its work was lost, instead of calling it a failure."""
    state = resume(database, execution, budget=1)
    attempt = AttemptId(state.attempt_id)
    seal(database, attempt, "snapshot: disk full")
    assert not resume(database, execution, budget=1).worked
    with transaction(database) as session:
        values = {"attempt_id": attempt, "execution_id": execution, "run_id": "r", "index": 0}
        session.add(
            ModelCallRow(
                id=call_id(attempt, 0),
                **values,
                status="committed",
                committed_at=func.now(),
                dialect="openai",
                request_key="k",
                requested={},
                sampling={},
            )
        )
    after = resume(database, execution, budget=1)
    assert (after.stage, after.worked) == ("exhausted", True)


def test_a_cancelled_attempt_does_not_use_up_the_budget(database: Database, execution: ExecutionId) -> None:
    for number in (1, 2, 3):
        state = resume(database, execution, budget=1)
        assert (state.number, state.stage) == (number, "provision")
        with transaction(database) as session:
            name = AttemptId(state.attempt_id)
            attempts.seal(session, name, EndReason.CANCELLED, failure="harness: cancelled")


def test_a_failure_found_after_the_seal_is_recorded_once(database: Database, execution: ExecutionId) -> None:
    state = resume(database, execution)
    assert seal(database, state.attempt_id)
    assert not seal(database, state.attempt_id, "snapshot: disk full")
    assert not seal(database, state.attempt_id, "something later")
    assert resume(database, execution).number == 2
    with transaction(database) as session:
        first = attempts.latest(session, execution)
        assert first is not None
        assert first.number == 2


def test_a_sealed_attempt_refuses_writers(database: Database, execution: ExecutionId) -> None:
    state = resume(database, execution)
    seal(database, state.attempt_id)
    with pytest.raises(Fenced, match="sealed"), transaction(database) as session:
        attempts.lock_open(session, AttemptId(state.attempt_id))


def test_a_seal_waits_for_a_write_in_progress(database: Database, execution: ExecutionId) -> None:
    """A write that holds the open row commits before the seal, so whoever reads after the seal sees it."""
    attempt = AttemptId(resume(database, execution).attempt_id)
    sealing = threading.Thread(target=seal, args=(database, attempt))
    with transaction(database) as session:
        attempts.lock_open(session, attempt)
        sealing.start()
        sealing.join(0.3)
        assert sealing.is_alive()
        session.add(
            ModelCallRow(
                id=call_id(attempt, 0),
                attempt_id=attempt,
                execution_id=execution,
                run_id="r",
                index=0,
                dialect="openai",
                request_key="k",
                requested={},
                sampling={},
            )
        )
    sealing.join(5)
    assert not sealing.is_alive()
    with transaction(database) as session:
        assert session.get(ModelCallRow, call_id(attempt, 0)) is not None


def test_a_disposition_is_final(database: Database, execution: ExecutionId) -> None:
    """Reported failure: a late event turned an attempt that had timed out back into a running one."""
    with transaction(database) as session:
        executions.fold(session, execution, Disposition.EXCLUDED, detail="evaluator: no number")
    with transaction(database) as session:
        row = executions.fold(session, execution, Disposition.SCORED, reward=reward(session, execution))
        assert (row.disposition, row.reward_id) == ("excluded", None)
    assert resume(database, execution).stage == "terminal"
    with pytest.raises(Fenced, match="terminal"), transaction(database) as session:
        attempts.open_attempt(session, execution, 2, "h")


def test_a_scored_execution_needs_a_reward(database: Database, execution: ExecutionId) -> None:
    with pytest.raises(IntegrityError, match="scored_rewarded"), transaction(database) as session:
        executions.fold(session, execution, Disposition.SCORED)


def test_the_first_reward_of_an_evaluation_stands(database: Database, execution: ExecutionId) -> None:
    state = resume(database, execution)
    seal(database, state.attempt_id)
    save(database, state.attempt_id)
    name = evaluation_id(execution, 1)
    with transaction(database) as session:
        evaluations.open_evaluation(
            session,
            name,
            execution=execution,
            snapshot=snapshot_id(AttemptId(state.attempt_id)),
            number=1,
        )
    for value in (0.25, 0.75):
        with transaction(database) as session:
            reward = evaluations.succeed(
                session, name, execution=execution, value=value, try_number=1, output_tail=""
            )
            assert reward.value == 0.25


def test_a_group_settles_when_all_its_executions_have(database: Database, group: GroupId) -> None:
    for index, expected in ((0, GroupStatus.RUNNING), (1, GroupStatus.READY)):
        with transaction(database) as session:
            name = execution_id(group, index)
            executions.fold(session, name, Disposition.SCORED, reward=reward(session, name))
            row, _ = groups.commit_outcome(session, group)
            assert row.status == expected
    with transaction(database) as session:
        rewarded = session.get_one(ExecutionRow, execution_id(group, 0)).reward_id
        assert executions.reward_value(session, rewarded) == 0.0


def test_a_group_without_a_score_is_dropped_with_a_reason(database: Database, group: GroupId) -> None:
    """Reported failure: crashed agents returned no rollouts, and training went on with empty epochs."""
    with transaction(database) as session:
        for index in range(2):
            executions.fold(session, execution_id(group, index), Disposition.PLACEHOLDER, detail="x")
        row, _ = groups.commit_outcome(session, group)
        assert (row.status, row.drop_reason) == ("dropped", "no execution was scored")
        assert groups.dropped_in_a_row(session, "r", limit=8) == 1


def test_a_seal_fails_the_calls_in_flight(database: Database, execution: ExecutionId) -> None:
    attempt = AttemptId(resume(database, execution).attempt_id)
    new = calls.NewCall("openai", "main", "k", {}, num_input_tokens=1, num_reused_tokens=0, input_sha256="s")
    with transaction(database) as session:
        calls.begin(session, attempt, new, lambda index: {}, owner="g", ttl_s=30)
    seal(database, attempt)
    with transaction(database) as session:
        (call,) = calls.calls(session, attempt)
        assert (call.status, call.failure) == ("failed", "sealed")
        assert (call.lease_owner, call.lease_expires_at) == (None, None)


def test_no_attempt_stays_open_when_its_execution_ends(database: Database, execution: ExecutionId) -> None:
    attempt = AttemptId(resume(database, execution).attempt_id)
    with transaction(database) as session:
        executions.fold(session, execution, Disposition.PLACEHOLDER, detail="its workflow failed")
    with transaction(database) as session:
        row = attempts.latest(session, execution)
        assert row is not None
        assert (row.status, row.end_reason, row.failure) == ("sealed", "cancelled", "its workflow failed")
    with pytest.raises(Fenced), transaction(database) as session:
        attempts.lock_open(session, attempt)


def test_an_execution_ends_while_a_call_is_being_recorded(database: Database, execution: ExecutionId) -> None:
    """The call locks its attempt and refers to the execution: the two must not deadlock."""
    attempt = AttemptId(resume(database, execution).attempt_id)
    new = calls.NewCall("openai", "main", "k", {}, num_input_tokens=1, num_reused_tokens=0, input_sha256="s")

    def fold() -> None:
        with transaction(database) as session:
            executions.fold(session, execution, Disposition.PLACEHOLDER, detail="x")

    folding = threading.Thread(target=fold)
    with transaction(database) as session:
        attempts.lock_open(session, attempt)
        folding.start()
        folding.join(0.3)
        calls.begin(session, attempt, new, lambda index: {}, owner="g", ttl_s=30)
    folding.join(10)
    assert not folding.is_alive()
    with transaction(database) as session:
        assert [call.status for call in calls.calls(session, attempt)] == ["failed"]
