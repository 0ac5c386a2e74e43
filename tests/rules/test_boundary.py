"""Next steps of a run, also through whole simulated runs."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gyre.rules.boundary import (
    Phase,
    RunView,
    Schedule,
    StepKind,
    dropped_limit,
    groups_needed,
    groups_to_dispatch,
    next_step,
)
from gyre.rules.dispatch import task_order
from gyre.rules.waterlevel import Supply, observe_supply

SCHEDULE = Schedule(
    target_updates=6,
    groups_per_batch=4,
    updates_per_burst=2,
    extra_dispatch=0.5,
    supply_fraction=1.0,
    supply_hold_s=0.0,
    heldout=True,
)
START = RunView(
    updates=0,
    running_groups=0,
    ready_groups=0,
    unfinished=0,
    dropped_in_a_row=0,
    capacity=8,
    cell_capacity=8,
    before=Phase.ABSENT,
    after=Phase.ABSENT,
    supply=Supply(0.0),
    now_s=1.0,
)


@st.composite
def valid_schedules(draw: st.DrawFn) -> Schedule:
    """Draw a schedule that the run file accepts: its supply never exceeds what is dispatched."""
    mu, phi = draw(st.integers(1, 4)), draw(st.sampled_from([0.0, 0.5, 1.0]))
    return Schedule(
        target_updates=draw(st.integers(1, 12)),
        groups_per_batch=draw(st.sampled_from([2, 4, 8])),
        updates_per_burst=mu,
        extra_dispatch=phi,
        supply_fraction=draw(st.sampled_from([0.25, 0.5, 1.0])) * (phi + mu),
        supply_hold_s=0.0,
        heldout=draw(st.booleans()),
    )


schedules = valid_schedules()


def advance(view: RunView, schedule: Schedule) -> tuple[RunView, StepKind]:
    """Take one decision and return its consequences."""
    step = next_step(schedule, view)
    if step.kind is StepKind.HELDOUT_BEFORE:
        return replace(view, before=Phase.RUNNING, unfinished=view.unfinished + 3), step.kind
    if step.kind is StepKind.HELDOUT_AFTER:
        return replace(view, after=Phase.RUNNING, unfinished=view.unfinished + 3), step.kind
    if step.kind is StepKind.DISPATCH:
        running = view.running_groups + step.count
        return replace(view, running_groups=running, unfinished=view.unfinished + step.count), step.kind
    if step.kind is StepKind.BURST:
        used = step.count * schedule.groups_per_batch
        return replace(
            view, updates=view.updates + step.count, ready_groups=view.ready_groups - used
        ), step.kind
    finished = {
        "before": Phase.DONE if view.before is Phase.RUNNING else view.before,
        "after": Phase.DONE if view.after is Phase.RUNNING else view.after,
    }
    ready = view.ready_groups + view.running_groups
    return replace(view, running_groups=0, ready_groups=ready, unfinished=0, **finished), step.kind


@given(schedules)
def test_every_run_finishes_and_trains_everything_it_dispatched(schedule: Schedule) -> None:
    view, dispatched, kinds = START, 0, []
    for _ in range(200):
        before = view.running_groups
        needed = groups_needed(schedule, updates=view.updates)
        supply = observe_supply(view.supply, ready=view.ready_groups, needed=needed, now_s=view.now_s)
        view = replace(view, supply=supply)
        view, kind = advance(view, schedule)
        kinds.append(kind)
        if kind is StepKind.DISPATCH:
            dispatched += view.running_groups - before
        if kind is StepKind.FINISH:
            break
    assert kinds[-1] is StepKind.FINISH
    assert view.updates == schedule.target_updates
    assert dispatched == schedule.target_updates * schedule.groups_per_batch
    assert (StepKind.HELDOUT_AFTER in kinds) == schedule.heldout


@given(schedules, st.integers(0, 11), st.integers(0, 100))
def test_dispatch_tops_up_to_the_quota(schedule: Schedule, updates: int, outstanding: int) -> None:
    count = groups_to_dispatch(schedule, updates=updates, outstanding=outstanding)
    quota = (schedule.extra_dispatch + schedule.updates_per_burst) * schedule.groups_per_batch
    assert count >= 0
    assert count == 0 or count + outstanding <= quota


@given(st.integers(1, 100), st.integers(0, 8))
def test_a_burst_starts_only_if_the_other_cells_can_serve_what_is_unfinished(
    unfinished: int, capacity: int
) -> None:
    ready = SCHEDULE.groups_per_batch * 3
    view = replace(START, before=Phase.DONE, ready_groups=ready, unfinished=unfinished, capacity=capacity)
    step = next_step(SCHEDULE, view)
    assert (step.kind is StepKind.BURST) == (unfinished <= capacity - view.cell_capacity)


def test_without_a_cell_there_is_no_burst() -> None:
    view = replace(START, before=Phase.DONE, ready_groups=12, capacity=0)
    assert next_step(SCHEDULE, view).kind is StepKind.WAIT


def test_many_dropped_groups_in_a_row_fail_the_run() -> None:
    """During an outage a run kept starting sandboxes forever."""
    view = replace(START, before=Phase.DONE, dropped_in_a_row=8)
    step = next_step(SCHEDULE, view)
    assert step.kind is StepKind.FAIL
    assert "8 groups" in step.reason
    wide = replace(SCHEDULE, groups_per_batch=40)
    assert dropped_limit(wide) == 80
    assert next_step(wide, replace(view, dropped_in_a_row=79)).kind is not StepKind.FAIL


@given(st.integers(1, 20), st.integers(0, 50), st.integers(1, 40), st.integers(0, 5))
def test_a_resumed_run_neither_skips_nor_repeats_a_task(
    tasks: int, first: int, count: int, seed: int
) -> None:
    """A data loader that had read ahead skipped its buffered prompts after a restart."""
    whole = task_order(tasks, first=0, count=first + count, seed=seed)
    assert task_order(tasks, first=first, count=count, seed=seed) == whole[first:]
    assert sorted(task_order(tasks, first=0, count=tasks, seed=seed)) == list(range(tasks))
