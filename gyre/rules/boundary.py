"""What a run does next between bursts: dispatch, burst, evaluate held-out tasks, finish or wait."""

from dataclasses import dataclass
from enum import StrEnum

from gyre.rules.waterlevel import Supply, admits


class Phase(StrEnum):
    """How far a held-out evaluation is."""

    ABSENT = "absent"
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True)
class Schedule:
    """The run file's schedule, as the rules need it."""

    target_updates: int
    groups_per_batch: int
    updates_per_burst: int
    extra_dispatch: float
    supply_fraction: float
    supply_hold_s: float
    heldout: bool


@dataclass(frozen=True)
class RunView:
    """One consistent look at a run."""

    updates: int
    """Newest policy version."""
    running_groups: int
    ready_groups: int
    unfinished: int
    """w: executions dispatched and not terminated, of any purpose."""
    dropped_in_a_row: int
    """Newest terminal train groups that were all dropped, of those dispatched since the last resume."""
    capacity: int
    """C_R: executions that cells in rollout serve at once."""
    cell_capacity: int
    """C_e of the cell that would be admitted."""
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
    """``count``: groups to dispatch, or updates in the burst."""

    kind: StepKind
    count: int = 0
    reason: str = ""


def groups_to_dispatch(schedule: Schedule, *, updates: int, outstanding: int) -> int:
    """Top dispatched-but-unconsumed groups up to Q_b = (phi + mu) B, never past what is left to train."""
    quota = round((schedule.extra_dispatch + schedule.updates_per_burst) * schedule.groups_per_batch)
    left = (schedule.target_updates - updates) * schedule.groups_per_batch
    return max(0, min(quota, left) - outstanding)


def groups_needed(schedule: Schedule, *, updates: int) -> float:
    """Ready groups that the supply rule asks for: rho_min B, but never more than are left to train."""
    left = (schedule.target_updates - updates) * schedule.groups_per_batch
    return min(schedule.supply_fraction * schedule.groups_per_batch, left)


def dropped_limit(schedule: Schedule) -> int:
    """Train groups dropped in a row at which a run is given up."""
    return max(8, 2 * schedule.groups_per_batch)


def updates_in_burst(schedule: Schedule, *, updates: int, ready_groups: int) -> int:
    """mu, or fewer when the target or the ready groups end sooner."""
    left = schedule.target_updates - updates
    return min(schedule.updates_per_burst, left, ready_groups // schedule.groups_per_batch)


def next_step(schedule: Schedule, view: RunView) -> Step:
    """The one thing that is due. Called at boundaries only: never while a burst runs."""
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
    if count and _admits(schedule, view):
        return Step(StepKind.BURST, count=count)
    return Step(StepKind.WAIT)


def _admits(schedule: Schedule, view: RunView) -> bool:
    return admits(
        view.supply,
        hold_s=schedule.supply_hold_s,
        now_s=view.now_s,
        unfinished=view.unfinished,
        capacity=view.capacity,
        cell_capacity=view.cell_capacity,
    )


def _evaluate(phase: Phase, kind: StepKind) -> Step:
    return Step(kind) if phase is Phase.ABSENT else Step(StepKind.WAIT)
