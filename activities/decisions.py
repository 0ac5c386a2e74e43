"""Decisions of a run: rules are evaluated on one database snapshot and committed in the same transaction."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy.orm import Session
from temporalio import activity

from activities.heartbeats import poll
from db import cells, groups, run_state, waits
from db.session import Database, transaction
from gyre.contracts.ids import RunId
from gyre.contracts.lifecycle import CellRole, GroupStatus, Purpose, RunStatus
from gyre.contracts.messages import (
    Decision,
    DecisionInput,
    FinishInput,
    GroupStart,
    RunPlan,
    RunRef,
    StageLimits,
    TrainingRunResult,
)
from gyre.durable.activities import AWAIT_DECISION, FINISH_RUN, LOAD_PLAN
from gyre.durable.failures import translated
from gyre.rules.boundary import (
    Phase,
    RunView,
    Schedule,
    Step,
    StepKind,
    dropped_limit,
    groups_needed,
    next_step,
)
from gyre.rules.dispatch import task_order
from gyre.rules.waterlevel import Supply, observe_supply
from gyre.settings import RunFile


@dataclass
class DecisionActivities:
    """Activities of TrainingRun, on ``<run>/control``."""

    database: Database
    host: str
    _supply: dict[str, Supply] = field(default_factory=dict[str, Supply])
    """Supply of ready groups per run, observed at every poll."""

    @activity.defn(name=LOAD_PLAN.name)
    @translated
    def load_plan(self, input: RunRef) -> RunPlan:
        """Mark the run as running and return the part of its run file that workflows need."""
        with transaction(self.database) as session:
            config = RunFile.model_validate(run_state.newest_config(session, input.run))
            run_state.advance_status(session, input.run, RunStatus.RUNNING)
        limits = config.limits.model_dump(include=set(StageLimits.model_fields))
        return RunPlan(
            run=input.run,
            host=self.host,
            limits=StageLimits.model_validate(limits),
            num_cells=config.cells.count,
            steps_before_new_history=config.schedule.history_steps,
        )

    @activity.defn(name=AWAIT_DECISION.name)
    @translated
    async def await_decision(self, input: DecisionInput) -> Decision:
        """Return the next decision as soon as something is due."""
        return await poll(lambda: self._decide(input))

    @activity.defn(name=FINISH_RUN.name)
    @translated
    def finish_run(self, input: FinishInput) -> TrainingRunResult:
        """Set the run's terminal status."""
        status = RunStatus.FAILED if input.failure else RunStatus.FINISHED
        with transaction(self.database) as session:
            run_state.advance_status(session, input.run, status, failure=input.failure)
            waits.end(session, owner=f"run/{input.run}")
            return TrainingRunResult(status=status, updates=run_state.newest_version(session, input.run))

    def _decide(self, input: DecisionInput) -> Decision | None:
        """Start committed groups first, then take the step that the rules name. None: nothing is due."""
        with transaction(self.database) as session:
            groups.lock_run(session, input.run)
            if starts := _starts(session, input):
                return Decision(kind="start", groups=starts)
            config = RunFile.model_validate(run_state.newest_config(session, input.run))
            view = self._view(session, input.run, config)
            return _take(next_step(_schedule(config), view), session, input, config, view)

    def _view(self, session: Session, run: str, config: RunFile) -> RunView:
        counts = groups.count_by_status(session, run)
        ready, now_s = counts.get(GroupStatus.READY, 0), time.monotonic()
        schedule, updates = _schedule(config), run_state.newest_version(session, run)
        needed = groups_needed(schedule, updates=updates)
        supply = observe_supply(self._supply.get(run, Supply()), ready=ready, needed=needed, now_s=now_s)
        self._supply[run] = supply
        rollout = [c for c in cells.of_run(session, run) if c.role == CellRole.ROLLOUT]
        return RunView(
            updates=updates,
            running_groups=counts.get(GroupStatus.RUNNING, 0),
            ready_groups=ready,
            unfinished=groups.unfinished_executions(session, run),
            dropped_in_a_row=groups.dropped_in_a_row(session, run, limit=dropped_limit(schedule)),
            capacity=sum(cell.capacity for cell in rollout),
            cell_capacity=config.schedule.max_concurrent,
            before=_phase(groups.phase_groups(session, run, "before")),
            after=_phase(groups.phase_groups(session, run, "after")),
            supply=supply,
            now_s=now_s,
        )


def _starts(session: Session, input: DecisionInput) -> list[GroupStart]:
    """Return dispatched groups whose workflows this chain of runs has not started yet."""
    return [
        GroupStart(group_id=row.id, index=row.index, task=task, size=row.size)
        for row, task in groups.to_start(session, input.run, input.last_group)
    ]


def _take(
    step: Step, session: Session, input: DecisionInput, config: RunFile, view: RunView
) -> Decision | None:
    """Write the rows that the step needs and return what workflows do next; None means to poll again."""
    run = RunId(input.run)
    if step.kind is StepKind.DISPATCH:
        _dispatch_train(session, run, config, step.count, view.updates)
    elif step.kind is StepKind.HELDOUT_BEFORE:
        _dispatch_heldout(session, run, config, "before", view.updates)
    elif step.kind is StepKind.HELDOUT_AFTER:
        _dispatch_heldout(session, run, config, "after", view.updates)
    elif step.kind is StepKind.BURST:
        waits.end(session, owner=f"run/{run}")
        return Decision(kind="burst", version=view.updates, num_updates=step.count)
    elif step.kind is StepKind.FINISH:
        return Decision(kind="finish", version=view.updates)
    elif step.kind is StepKind.FAIL:
        return Decision(kind="fail", reason=step.reason)
    else:
        waits.begin(
            session,
            run=run,
            owner=f"run/{run}",
            waits_for="a cell that serves" if view.capacity == 0 else "executions in progress",
            expected_s=60 if view.capacity == 0 else config.limits.total_s,
        )
        return None
    starts = _starts(session, input)
    return Decision(kind="start", groups=starts) if starts else None


def _dispatch_train(session: Session, run: RunId, config: RunFile, count: int, version: int) -> None:
    names = run_state.task_ids(session, run, "train")
    first, done = groups.next_index(session, run), groups.num_train_groups(session, run)
    order = task_order(len(names), first=done, count=count, seed=config.run.seed)
    for offset, position in enumerate(order):
        groups.dispatch(
            session,
            run,
            names[position],
            index=first + offset,
            size=config.schedule.group_size,
            version=version,
        )


def _dispatch_heldout(session: Session, run: RunId, config: RunFile, phase: str, version: int) -> None:
    index = groups.next_index(session, run)
    wanted = [(Purpose.HELDOUT, config.heldout.samples)] if config.heldout.samples else []
    wanted += [(Purpose.GREEDY, 1)] if config.heldout.greedy else []
    for task in run_state.task_ids(session, run, "heldout"):
        for purpose, size in wanted:
            groups.dispatch(
                session, run, task, index=index, size=size, version=version, purpose=purpose, phase=phase
            )
            index += 1


def _schedule(config: RunFile) -> Schedule:
    schedule, heldout = config.schedule, config.heldout
    return Schedule(
        target_updates=config.run.updates,
        groups_per_batch=schedule.groups_per_batch,
        updates_per_burst=schedule.updates_per_burst,
        extra_dispatch=schedule.extra_dispatch,
        supply_fraction=schedule.supply_fraction,
        supply_hold_s=schedule.supply_hold_s,
        heldout=config.tasks.heldout is not None and bool(heldout.samples or heldout.greedy),
    )


def _phase(statuses: Sequence[GroupStatus]) -> Phase:
    if not statuses:
        return Phase.ABSENT
    return Phase.RUNNING if GroupStatus.RUNNING in statuses else Phase.DONE
