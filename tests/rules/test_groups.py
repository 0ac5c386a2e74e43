"""Readiness, dispositions and advantages."""

from itertools import pairwise
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.lifecycle import Disposition, EndReason, GroupStatus
from gyre.rules.dispositions import AttemptOutcome, attempt_outcome, ending
from gyre.rules.groups import advantages, group_outcome

rewards = st.dictionaries(st.text(min_size=1, max_size=4), st.floats(0, 1), min_size=0, max_size=16)
dispositions = st.lists(st.sampled_from([*Disposition, None]), max_size=16)


@given(rewards)
def test_advantages_are_centred_and_scaled(found: dict[str, float]) -> None:
    result = advantages(found)
    assert result.keys() == found.keys()
    if any(result.values()):
        assert isclose(sum(result.values()), 0, abs_tol=1e-6)
        assert isclose(sum(a * a for a in result.values()) / len(result), 1, rel_tol=1e-6)


@given(rewards)
def test_advantages_keep_the_order_of_rewards(found: dict[str, float]) -> None:
    result = advantages(found, normalise_std=False)
    names = sorted(found, key=lambda name: found[name])
    assert all(result[a] <= result[b] for a, b in pairwise(names))


@given(st.floats(0, 1), st.integers(1, 16))
def test_equal_rewards_have_no_advantage(value: float, count: int) -> None:
    assert set(advantages({str(i): value for i in range(count)}).values()) == {0.0}


def test_a_single_scored_execution_has_no_advantage() -> None:
    assert advantages({"a": 1.0}) == {"a": 0.0}


def test_infrastructure_failures_stay_out_of_the_baseline() -> None:
    """They were trained as a reward of 0. A placeholder enters the baseline only if the run says so."""
    own = {"a": 1.0, "b": 0.5}
    assert advantages(own) == advantages(own, num_placeholders=0)
    assert advantages(own, num_placeholders=2)["b"] > advantages(own)["b"]


@given(dispositions, st.integers(1, 16))
def test_a_group_is_ready_only_when_all_are_terminal(found: list[Disposition | None], size: int) -> None:
    outcome = group_outcome(found, size)
    complete = len(found) >= size and None not in found
    assert (outcome is GroupStatus.RUNNING) == (not complete)
    if complete:
        assert (outcome is GroupStatus.READY) == (Disposition.SCORED in found)


@given(st.booleans(), st.booleans(), st.booleans(), st.none() | st.text())
def test_an_execution_without_a_valid_reward_is_never_scored(
    worked: bool, snapshot: bool, valid: bool, failure: str | None
) -> None:
    end = ending(worked=worked, snapshot=snapshot, reward_valid=valid, failure=failure)
    assert (end.disposition is Disposition.SCORED) == valid
    assert valid or end.detail
    if not valid:
        assert (end.disposition is Disposition.PLACEHOLDER) == (not worked)


@pytest.mark.parametrize("code", [0, 1, None])
def test_a_time_limit_is_scored_like_a_normal_end(code: int | None) -> None:
    """An agent that ran out of time may still have earned a valid reward."""
    assert attempt_outcome(EndReason.TIME_LIMIT, code, 0) is AttemptOutcome.EVALUATE
    assert attempt_outcome(EndReason.EXITED, code, 3) is AttemptOutcome.EVALUATE


def test_a_harness_that_failed_without_a_call_is_retried() -> None:
    assert attempt_outcome(EndReason.EXITED, 127, 0) is AttemptOutcome.RETRY
    assert attempt_outcome(EndReason.EXITED, 0, 0) is AttemptOutcome.EVALUATE


@pytest.mark.parametrize("reason", [EndReason.PROVISION_FAILED, EndReason.SANDBOX_LOST, EndReason.CANCELLED])
def test_a_lost_sandbox_is_retried_and_not_scored(reason: EndReason) -> None:
    """A container was restarted blank in mid-episode, without a word."""
    assert attempt_outcome(reason, 0, 5) is AttemptOutcome.RETRY
