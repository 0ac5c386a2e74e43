"""Held-out scores with honest errors: tasks are independent, rollouts of one task are not."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan, nan, sqrt
from typing import Any

from app.demo.recipe import BAR, CONTROL_BAR
from db.demo_report import HeldoutOutcome, Trained
from db.queries import RunSummary
from gyre.contracts.lifecycle import Purpose
from gyre.contracts.roles import TRAINED_ROLES

BRANCHING = {"main_summary": "compaction", "subagent": "sub-agent"}
"""Roles that the demo's tasks force, and what forces each."""
PASSED = 1 - 1e-3
"""Least reward with everything right: ``reward.txt`` has four decimals."""


@dataclass(frozen=True)
class Side:
    """Held-out rollouts of one purpose in one phase."""

    mean: float
    """Mean over the scored rollouts; nan without any."""
    stderr: float
    """Standard error of the mean, from the spread between tasks; nan below two tasks."""
    pass_rate: float
    """Share of the scored rollouts with everything right."""
    num_rollouts: int
    """Number of scored rollouts."""
    num_missing: int
    """Number of rollouts without a score: excluded, placeholder or not ended. They do not count as 0."""


def side(outcomes: Iterable[HeldoutOutcome], purpose: Purpose, phase: str) -> Side:
    """Summarize the outcomes of one purpose in one phase."""
    chosen = [each for each in outcomes if each.purpose is purpose and each.phase == phase]
    rewards = [each.reward for each in chosen if each.reward is not None]
    return Side(
        mean=_mean(rewards),
        stderr=_stderr(list(_task_means(chosen).values())),
        pass_rate=_mean([float(reward >= PASSED) for reward in rewards]),
        num_rollouts=len(rewards),
        num_missing=len(chosen) - len(rewards),
    )


def lift_stderr(outcomes: Iterable[HeldoutOutcome]) -> float:
    """Return the standard error of (after - before), paired by task; nan below two tasks."""
    chosen = [each for each in outcomes if each.purpose is Purpose.HELDOUT]
    before = _task_means(each for each in chosen if each.phase == "before")
    after = _task_means(each for each in chosen if each.phase == "after")
    return _stderr([after[task] - before[task] for task in sorted(before.keys() & after.keys())])


def _task_means(outcomes: Iterable[HeldoutOutcome]) -> dict[str, float]:
    rewards: dict[str, list[float]] = defaultdict(list)
    for each in outcomes:
        if each.reward is not None:
            rewards[each.task].append(each.reward)
    return {task: _mean(values) for task, values in rewards.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else nan


def _stderr(values: Sequence[float]) -> float:
    if len(values) < 2:
        return nan
    mean = _mean(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return sqrt(variance / len(values))


@dataclass(frozen=True)
class Report:
    """Result of a demo run. Means are in [0, 1]."""

    summary: RunSummary
    seed: int
    control: str
    before: Side
    after: Side
    greedy_before: Side
    greedy_after: Side
    lift_stderr: float
    reward_by_update: Sequence[float]
    trained: Mapping[str, Trained]
    """Counts for each of TRAINED_ROLES."""
    seconds: float

    @property
    def lift(self) -> float:
        return self.after.mean - self.before.mean

    @property
    def untrained(self) -> str | None:
        """A clause that names the kinds of branches that no trained path shows; None if none is missing."""
        missing = [what for role, what in BRANCHING.items() if not self.trained[role].paths]
        return f"no trained path comes from a {' or a '.join(missing)}" if missing else None

    @property
    def verdict(self) -> str:
        """One sentence on whether the demo kept its promise."""
        return f"{self._learnt}, but {self.untrained}" if self.untrained else self._learnt

    @property
    def _learnt(self) -> str:
        if isnan(self.lift):
            return "no verdict: held-out rollouts are missing on one side"
        if self.control == "permuted":
            kept = self.lift < CONTROL_BAR
            return (
                f"control {'holds' if kept else 'BROKEN'}: lift {self.lift:+.3f}, must stay < {CONTROL_BAR}"
            )
        kept = self.lift >= BAR and self.greedy_after.mean >= self.greedy_before.mean
        return (
            f"{'learnt' if kept else 'NOT LEARNT'}: lift {self.lift:+.3f} (bar {BAR:+.2f}), "
            f"greedy {self.greedy_after.mean - self.greedy_before.mean:+.3f} (must not fall)"
        )


def report(
    summary: RunSummary,
    outcomes: Sequence[HeldoutOutcome],
    rewards: Sequence[float],
    trained: Mapping[str, Trained],
    *,
    seed: int,
    control: str,
    seconds: float,
) -> Report:
    """Build the report from what Postgres holds about the run."""
    return Report(
        summary=summary,
        seed=seed,
        control=control,
        before=side(outcomes, Purpose.HELDOUT, "before"),
        after=side(outcomes, Purpose.HELDOUT, "after"),
        greedy_before=side(outcomes, Purpose.GREEDY, "before"),
        greedy_after=side(outcomes, Purpose.GREEDY, "after"),
        lift_stderr=lift_stderr(outcomes),
        reward_by_update=rewards,
        trained={role: trained.get(role, Trained(0, 0, 0)) for role in TRAINED_ROLES},
        seconds=seconds,
    )


def document(found: Report, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Build the ``--json`` document of ``gyre demo``; unknown values are null.

    ``heldout_stderr`` is the standard error of the lift, paired by task; ``shown`` has those of both phases.
    ``heldout_rollouts`` is the smaller phase's number of scored rollouts at the run's temperature.
    ``roles`` counts rollouts, selected paths and target tokens of the trained batches.
    """
    return {
        "run": found.summary.run,
        "seed": found.seed,
        "control": found.control,
        "updates": found.summary.updates,
        "heldout_before": _number(found.before.mean),
        "heldout_after": _number(found.after.mean),
        "heldout_stderr": _number(found.lift_stderr),
        "greedy_before": _number(found.greedy_before.mean),
        "greedy_after": _number(found.greedy_after.mean),
        "heldout_rollouts": min(found.before.num_rollouts, found.after.num_rollouts),
        "account": found.summary.account,
        "dispositions": found.summary.dispositions,
        "roles": {role: asdict(trained) for role, trained in found.trained.items()},
        "shown": {
            "status": found.summary.status,
            "failure": found.summary.failure,
            "verdict": found.verdict,
            "untrained": found.untrained,
            "lift": _number(found.lift),
            "heldout_stderr_before": _number(found.before.stderr),
            "heldout_stderr_after": _number(found.after.stderr),
            "heldout_missing": found.before.num_missing + found.after.num_missing,
            "pass_rate_before": _number(found.before.pass_rate),
            "pass_rate_after": _number(found.after.pass_rate),
            "reward_by_update": [round(reward, 4) for reward in found.reward_by_update],
            **shown,
        },
        "seconds": round(found.seconds, 1),
    }


def _number(value: float) -> float | None:
    return None if isnan(value) else round(value, 4)
