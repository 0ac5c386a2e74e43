"""Next step of a run between bursts: dispatch, burst, evaluate held-out tasks, finish or wait."""

from dataclasses import dataclass
from enum import StrEnum

from gyre.rules.waterlevel import Supply, admits


class Phase(StrEnum):
    """Progress of a held-out evaluation."""

    ABSENT = "absent"
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True)
class Schedule:
    """The part of the run file that the rules need."""

    target_updates: int
    groups_per_batch: int
    updates_per_burst: int
    extra_dispatch: float
    supply_fraction: float
    supply_hold_s: float
    heldout: bool


@dataclass(frozen=True)
class RunView:
    """A run at one moment."""

    updates: int
    """Newest policy version, which is the number of updates so far."""
    running_groups: int
    ready_groups: int
    unfinished: int
    """w: number of executions dispatched and not terminal, of any purpose."""
    dropped_in_a_row: int
    """Number of newest terminal train groups that were all dropped, counted since the last resume."""
    capacity: int
    """C_R: number of executions that the cells in rollout serve at once."""
    cell_capacity: int
    """C_e: capacity of the cell that would switch to training."""
    before: Phase
    after: Phase
    supply: Supply
    now_s: float


class StepKind(StrEnum):
    DISPATCH = "dispatch"
    HELDOUT_BEFORE = "heldout_before"
    HELDOUT_AFTER = "heldout_after"
    BURST = "burst"
    FINISH = "finish"
    FAIL = "fail"
    WAIT = "wait"


@dataclass(frozen=True)
class Step:
    """The one thing that is due."""

    kind: StepKind
    count: int = 0
    """Number of groups to dispatch, or of updates in the burst."""
    reason: str = ""


def groups_to_dispatch(schedule: Schedule, *, updates: int, outstanding: int) -> int:
    """Return what the outstanding groups lack to Q_b = (phi + mu) B, or to all that are left to train."""
    quota = round((schedule.extra_dispatch + schedule.updates_per_burst) * schedule.groups_per_batch)
    left = (schedule.target_updates - updates) * schedule.groups_per_batch
    return max(0, min(quota, left) - outstanding)


def groups_needed(schedule: Schedule, *, updates: int) -> float:
    """Return how many ready groups the supply rule asks for: rho_min B, or all that are left to train."""
    left = (schedule.target_updates - updates) * schedule.groups_per_batch
    return min(schedule.supply_fraction * schedule.groups_per_batch, left)


def dropped_limit(schedule: Schedule) -> int:
    """Return the number of train groups dropped in a row that fails a run."""
    return max(8, 2 * schedule.groups_per_batch)


def updates_in_burst(schedule: Schedule, *, updates: int, ready_groups: int) -> int:
    """Return mu, or less if the target or the ready groups end sooner."""
    left = schedule.target_updates - updates
    return min(schedule.updates_per_burst, left, ready_groups // schedule.groups_per_batch)


def next_step(schedule: Schedule, view: RunView) -> Step:
    """Return the one thing that is due. Called at boundaries only: never while a burst runs."""
    if schedule.heldout and view.before is not Phase.DONE:
        return _evaluate(view.before, StepKind.HELDOUT_BEFORE)
    if view.updates >= schedule.target_updates:
        if schedule.heldout and view.after is not Phase.DONE:
            return _evaluate(view.after, StepKind.HELDOUT_AFTER)
        return Step(StepKind.FINISH)
    if view.dropped_in_a_row >= dropped_limit(schedule):
        return Step(StepKind.FAIL, reason=f"the last {view.dropped_in_a_row} groups were all dropped")
    missing = groups_to_dispatch(
        schedule, updates=view.updates, outstanding=view.running_groups + view.ready_groups
    )
    if missing:
        return Step(StepKind.DISPATCH, count=missing)
    count = updates_in_burst(schedule, updates=view.updates, ready_groups=view.ready_groups)
    if count and admits(
        view.supply,
        hold_s=schedule.supply_hold_s,
        now_s=view.now_s,
        unfinished=view.unfinished,
        capacity=view.capacity,
        cell_capacity=view.cell_capacity,
    ):
        return Step(StepKind.BURST, count=count)
    return Step(StepKind.WAIT)


def _evaluate(phase: Phase, kind: StepKind) -> Step:
    return Step(kind) if phase is Phase.ABSENT else Step(StepKind.WAIT)
