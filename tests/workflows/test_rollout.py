"""Every course of an execution ends in one disposition, and nothing finished is repeated."""

from typing import Any

import pytest
from temporalio.client import Client

from gyre.contracts import ids
from gyre.contracts.errors import BadInput, EvaluatorFailed, GyreError, ProvisionFailed
from gyre.contracts.lifecycle import Disposition, EndReason
from gyre.contracts.messages import (
    AttemptState,
    EvaluateResult,
    FoldInput,
    HarnessResult,
    OpenAttemptInput,
    ProvisionResult,
    QueryGroupInput,
    QueryGroupResult,
    RolloutInput,
    RolloutResult,
    SealResult,
    SnapshotResult,
    StageLimits,
)
from gyre.durable import activities as names
from gyre.durable.failures import as_application_error
from tests.workflows.conftest import HOST, Script

LIMITS = StageLimits(
    provision_s=5, harness_s=5, snapshot_s=5, evaluate_s=5, total_s=60, attempts=2, evaluations=2
)


def failed(error: GyreError) -> Exception:
    return as_application_error(error)


def name(script: Script) -> str:
    return f"{ids.group_id(script.run, 0)}/rollout/0"


def ready(script: Script) -> None:
    """Make every activity succeed."""

    def opened(input: OpenAttemptInput, number: int) -> AttemptState:
        stage = "provision" if number <= input.max_attempts else "exhausted"
        state = {"attempt_id": f"{input.execution_id}/attempt/{number}", "number": number, "stage": stage}
        return AttemptState.model_validate(state)

    def folded(input: FoldInput, number: int) -> RolloutResult:
        reward = 0.5 if input.reward_id else None
        return RolloutResult(
            disposition=input.disposition,
            reward=reward,
            num_attempts=len(script.of(names.OPEN_ATTEMPT)),
            num_calls=1,
            num_output_tokens=1,
            num_evaluations=len(script.of(names.EVALUATE_SNAPSHOT)),
            detail=input.detail,
        )

    script.on(names.OPEN_ATTEMPT, opened)
    script.on(names.PROVISION_WORKSPACE, ProvisionResult(num_files=1, num_bytes=1))
    script.on(names.RUN_HARNESS, ended(0))
    script.on(names.SEAL_ATTEMPT, sealed(3))
    snapshot = SnapshotResult(snapshot_id="s", num_files=1, num_bytes=1, num_changed_files=1)
    script.on(names.TAKE_SNAPSHOT, snapshot)
    script.on(names.EVALUATE_SNAPSHOT, EvaluateResult(reward_id="r", reward=0.5, seconds=1))
    script.on(names.FOLD_EXECUTION, folded)
    script.on(names.COMMIT_GROUP, QueryGroupResult(status="ready", scored=1, placeholder=0, excluded=0))


def ended(code: int | None, reason: EndReason = EndReason.EXITED) -> HarnessResult:
    return HarnessResult(end_reason=reason, exit_code=code, seconds=1)


def sealed(calls: int) -> SealResult:
    return SealResult(num_calls=calls, num_input_tokens=9, num_output_tokens=9, num_branches=1)


def rollout(script: Script, limits: StageLimits = LIMITS) -> RolloutResult:
    async def scene(client: Client) -> Any:
        input = RolloutInput(execution_id=name(script), task="a", host=HOST, limits=limits)
        queue = ids.control_queue(script.run)
        return await client.execute_workflow(
            "Rollout", input, id=name(script), task_queue=queue, result_type=RolloutResult
        )

    return script.play(scene)


def test_a_failed_evaluator_is_tried_again_without_the_agent(script: Script) -> None:
    """A verifier's time-out made the whole execution be sampled again, though the agent had finished."""
    ready(script)
    good = EvaluateResult(reward_id="r", reward=0.5, seconds=1)
    script.on(
        names.EVALUATE_SNAPSHOT,
        lambda _, number: failed(EvaluatorFailed("no number")) if number == 1 else good,
    )
    result = rollout(script)
    assert (result.disposition, result.reward, result.num_evaluations) == ("scored", 0.5, 2)
    assert len(script.of(names.RUN_HARNESS)) == 1
    assert [each.final for each in script.of(names.EVALUATE_SNAPSHOT)] == [False, True]


def test_an_evaluator_that_never_succeeds_excludes_the_execution(script: Script) -> None:
    """An evaluator that hangs must not become a silent reward of 0."""
    ready(script)
    script.on(names.EVALUATE_SNAPSHOT, failed(EvaluatorFailed("timed out")))
    result = rollout(script)
    assert (result.disposition, result.reward) == (Disposition.EXCLUDED, None)
    assert "timed out" in (result.detail or "")


def test_an_execution_without_work_is_a_placeholder(script: Script) -> None:
    ready(script)
    script.on(names.PROVISION_WORKSPACE, failed(ProvisionFailed("image pull")))
    result = rollout(script, LIMITS.model_copy(update={"attempts": 1}))
    assert result.disposition == Disposition.PLACEHOLDER
    assert "image pull" in (result.detail or "")
    assert script.of(names.SEAL_ATTEMPT)[-1].failure == result.detail


@pytest.mark.parametrize(
    ("first", "calls"), [(ended(127), 0), (ended(None, EndReason.CANCELLED), 3)], ids=["127", "cancelled"]
)
def test_an_attempt_that_the_policy_did_not_fail_is_followed_by_another(
    script: Script, first: HarnessResult, calls: int
) -> None:
    ready(script)
    script.on(names.RUN_HARNESS, lambda _, number: first if number == 1 else ended(0))
    script.on(names.SEAL_ATTEMPT, lambda input, _: sealed(calls if "attempt/1" in input.attempt_id else 3))
    assert rollout(script).disposition == Disposition.SCORED
    assert [each.attempt_id[-1] for each in script.of(names.RUN_HARNESS)] == ["1", "2"]
    assert len(script.of(names.TAKE_SNAPSHOT)) == 1


def test_work_left_at_the_time_limit_is_scored(script: Script) -> None:
    """An agent that ran out of time may still have earned a valid reward."""
    ready(script)
    script.on(names.RUN_HARNESS, ended(None, EndReason.TIME_LIMIT))
    assert rollout(script).reward == 0.5


def test_the_total_time_budget_bounds_all_attempts(script: Script) -> None:
    """Limits per stage did not bound an execution: here two lost sandboxes of 40 s use up its 60 s."""
    ready(script)
    lost = HarnessResult(end_reason=EndReason.SANDBOX_LOST, exit_code=None, seconds=40)
    script.on(names.RUN_HARNESS, lost)
    result = rollout(script, LIMITS.model_copy(update={"attempts": 9, "harness_s": 50}))
    assert [round(each.limit_s) for each in script.of(names.RUN_HARNESS)] == [50, 20]
    assert result.disposition == Disposition.PLACEHOLDER


def test_saved_work_is_scored_without_running_the_harness(script: Script) -> None:
    ready(script)
    state = {"attempt_id": "a/attempt/1", "number": 1, "stage": "evaluate", "snapshot_id": "s"}
    script.on(names.OPEN_ATTEMPT, AttemptState.model_validate(state | {"next_evaluation": 2}))
    assert rollout(script).disposition == Disposition.SCORED
    assert script.of(names.RUN_HARNESS) == []
    assert script.of(names.EVALUATE_SNAPSHOT)[0].evaluation_id.endswith("/evaluation/2")


def test_a_terminal_execution_is_read_and_not_folded_again(script: Script) -> None:
    ready(script)
    state = {"attempt_id": "a/attempt/1", "number": 1, "stage": "terminal"}
    script.on(names.OPEN_ATTEMPT, AttemptState.model_validate(state))
    committed = RolloutResult(
        disposition=Disposition.SCORED,
        reward=0.25,
        num_attempts=1,
        num_calls=1,
        num_output_tokens=1,
        num_evaluations=1,
    )
    script.on(names.FOLD_EXECUTION, committed)
    assert rollout(script) == committed
    assert script.of(names.FOLD_EXECUTION) == [FoldInput(execution_id=name(script), disposition=None)]


def test_a_rollout_that_fails_as_a_workflow_is_excluded_alone(script: Script) -> None:
    """One exception canceled a whole batch and hid its cause."""
    ready(script)
    broken = failed(BadInput("row is gone"))
    good = script.answer_to(names.OPEN_ATTEMPT)

    def opened(input: OpenAttemptInput, number: int) -> Any:
        if input.execution_id.endswith("/0"):
            return broken
        return good(input, 1)

    script.on(names.OPEN_ATTEMPT, opened)

    async def scene(client: Client) -> QueryGroupResult:
        group = ids.group_id(script.run, 0)
        input = QueryGroupInput(group_id=group, task="a", size=2, host=HOST, limits=LIMITS)
        return await client.execute_workflow(
            "QueryGroup",
            input,
            id=group,
            task_queue=ids.control_queue(script.run),
            result_type=QueryGroupResult,
        )

    assert script.play(scene).status == "ready"
    folds = {input.execution_id[-1]: input for input in script.of(names.FOLD_EXECUTION)}
    assert folds["0"].disposition == Disposition.EXCLUDED
    assert "row is gone" in folds["0"].detail
    assert folds["1"].disposition == Disposition.SCORED
    assert len([g for g in script.of(names.OPEN_ATTEMPT) if g.execution_id.endswith("/0")]) == 3
