"""Scores with honest errors, the final tables, and the document of ``--json``."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from math import isnan, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from app.demo.report import Report, document, lift_stderr, report, side
from app.demo.screen import print_report, sparkline
from db.demo_report import HeldoutOutcome, Trained
from db.queries import RunSummary
from gyre.contracts.lifecycle import Disposition, Purpose

KEYS = {
    "run", "seed", "control", "updates", "heldout_before", "heldout_after", "heldout_stderr", "greedy_before",
    "greedy_after", "heldout_rollouts", "account", "dispositions", "roles", "shown", "seconds",
}  # fmt: skip
SUMMARY = RunSummary(
    run="demo-s0-1",
    status="finished",
    failure=None,
    created_at=datetime(2026, 11, 30, tzinfo=UTC),
    finished_at=None,
    updates=2,
    policy_version=2,
    mean_reward=0.6,
    account={"dispatched": 16, "trained": 16, "ready": 0, "running": 0, "dropped": 0},
    dispositions={"scored": 200, "placeholder": 0, "excluded": 1},
    running=0,
)


TRAINED = {
    "main": Trained(9, 12, 340),
    "main_summary": Trained(2, 2, 20),
    "subagent": Trained(3, 3, 80),
}


def outcome(
    task: str, reward: float | None, phase: str = "before", purpose: Purpose = Purpose.HELDOUT
) -> HeldoutOutcome:
    disposition = Disposition.EXCLUDED if reward is None else Disposition.SCORED
    return HeldoutOutcome(task, purpose, phase, disposition, reward)


def built(lift: float, *, greedy: float = 0.0, control: str = "none") -> Report:
    outcomes = [
        *(outcome(task, 0.4) for task in "ab"),
        *(outcome(task, 0.4 + lift, "after") for task in "ab"),
        outcome("a", 0.5, "before", Purpose.GREEDY),
        outcome("a", 0.5 + greedy, "after", Purpose.GREEDY),
    ]
    return report(SUMMARY, outcomes, [0.4, 0.6], TRAINED, seed=0, control=control, seconds=12.34)


def test_a_missing_score_is_not_a_zero() -> None:
    found = side([outcome("a", 1.0), outcome("a", None), outcome("b", 0.5)], Purpose.HELDOUT, "before")
    assert (found.mean, found.num_rollouts, found.num_missing, found.pass_rate) == (0.75, 2, 1, 0.5)


def test_phases_and_purposes_do_not_mix() -> None:
    outcomes = [outcome("a", 1.0), outcome("a", 0.2, "after"), outcome("a", 0.6, "before", Purpose.GREEDY)]
    assert side(outcomes, Purpose.HELDOUT, "before").mean == 1.0
    assert side(outcomes, Purpose.HELDOUT, "after").mean == 0.2
    assert side(outcomes, Purpose.GREEDY, "before").mean == 0.6
    assert isnan(side(outcomes, Purpose.GREEDY, "after").mean)


def test_rollouts_of_one_task_are_not_independent() -> None:
    outcomes = [outcome(task, reward) for task, reward in (("a", 0.0), ("b", 1.0)) for _ in range(50)]
    assert side(outcomes, Purpose.HELDOUT, "before").stderr == pytest.approx(sqrt(0.5 / 2))


@given(rewards=st.lists(st.floats(0, 0.5), min_size=2, max_size=9), lift=st.floats(0, 0.5))
def test_an_equal_lift_of_every_task_has_no_error(rewards: list[float], lift: float) -> None:
    before = [outcome(str(task), reward) for task, reward in enumerate(rewards)]
    after = [outcome(str(task), reward + lift, "after") for task, reward in enumerate(rewards)]
    assert lift_stderr([*before, *after]) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (built(0.2), "learnt"),
        (built(0.1), "NOT LEARNT"),
        (built(0.2, greedy=-0.1), "NOT LEARNT"),
        (built(0.04, control="permuted"), "control holds"),
        (built(0.2, control="permuted"), "control BROKEN"),
        (report(SUMMARY, [], [], {}, seed=0, control="none", seconds=1), "no verdict"),
    ],
)
def test_the_verdict_depends_on_lift_greedy_score_and_control(found: Report, word: str) -> None:
    assert found.verdict.startswith(word)


def test_document_has_the_stable_keys_and_is_json() -> None:
    found = document(built(0.2), {"temporal_ui": "http://127.0.0.1:1"})
    assert set(found) == KEYS
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["heldout_rollouts"] == 2
    assert found["heldout_after"] == 0.6
    assert found["shown"]["temporal_ui"] == "http://127.0.0.1:1"


def test_document_of_a_run_that_failed_early_is_json() -> None:
    found = document(report(SUMMARY, [], [], {}, seed=0, control="none", seconds=1), {})
    assert found["heldout_before"] is None
    json.dumps(found, allow_nan=False)


def test_printed_report_shows_what_is_missing() -> None:
    outcomes = [outcome("a", 0.4), outcome("b", None), outcome("a", 0.9, "after")]
    console = Console(file=io.StringIO(), width=120)
    found = report(SUMMARY, outcomes, [0.4], {}, seed=0, control="none", seconds=1)
    print_report(console, found, {"show": "x"})
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "without a score" in text
    assert "0.400" in text
    assert "0.900" in text


def test_the_printed_report_of_a_failed_run_names_its_failure_and_fits_80_columns() -> None:
    summary = replace(
        SUMMARY, status="failed", failure="cell 0 [/] ended: [Errno 28] no space left on device"
    )
    console = Console(file=io.StringIO(), width=80)
    print_report(console, replace(built(0.2), summary=summary, reward_by_update=[0.25] * 30), {"show": "x"})
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert f"failed            {summary.failure}" in map(str.rstrip, lines)
    assert sum(line.count("0.25") for line in lines) == 30
    assert max(map(len, lines)) <= 80


def test_sparkline_covers_the_unit_range() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"


def test_roles_are_counted_and_a_missing_one_is_named() -> None:
    found = built(0.2)
    assert document(found, {})["roles"] == {
        "main": {"rollouts": 9, "paths": 12, "targets": 340},
        "main_summary": {"rollouts": 2, "paths": 2, "targets": 20},
        "subagent": {"rollouts": 3, "paths": 3, "targets": 80},
        "subagent_summary": {"rollouts": 0, "paths": 0, "targets": 0},
    }
    assert document(found, {})["shown"]["untrained"] is None
    console = Console(file=io.StringIO(), width=120)
    print_report(console, found, {})
    lines = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert ["selected", "paths", "12", "2", "3", "0"] in lines
    without = {"main": TRAINED["main"], "subagent": TRAINED["subagent"]}
    found = report(SUMMARY, [], [], without, seed=0, control="none", seconds=1)
    assert found.untrained == "no trained path comes from a compaction"
    found = replace(built(0.2), trained=found.trained)
    assert found.verdict.startswith("learnt: ")
    assert found.verdict.endswith(", but no trained path comes from a compaction")
