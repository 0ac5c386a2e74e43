"""One training run: ask what is due and do it, until the run is finished."""

from typing import assert_never

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from gyre.contracts.ids import RunId, burst_id, cell_id, control_queue
    from gyre.contracts.messages import (
        BurstInput,
        CellInput,
        Decision,
        DecisionInput,
        FinishInput,
        GroupStart,
        QueryGroupInput,
        RunPlan,
        RunRef,
        TrainingRunInput,
        TrainingRunResult,
    )
    from gyre.durable import activities, options
    from gyre.durable.calls import call, label
    from gyre.durable.client import CELL, GROUP, POLICY_VERSION, RUN, TASK
    from gyre.durable.failures import root_sentence
    from workflows.cell import Cell
    from workflows.query_group import QueryGroup
    from workflows.training_burst import TrainingBurst


@workflow.defn(name="TrainingRun")
class TrainingRun:
    """Starts what committed decisions name. The state of the run is in Postgres.

    Collaborators: QueryGroup (one per group), TrainingBurst (one per burst), Cell (one per cell), and the
    activity ``await_decision``, which evaluates gyre/rules on one database snapshot.
    """

    @workflow.init
    def __init__(self, input: TrainingRunInput) -> None:
        self._run = RunId(input.run)
        self._last_group = input.last_group
        self._steps = 0
        self._cells: list[str] = []

    @workflow.run
    async def run(self, input: TrainingRunInput) -> TrainingRunResult:
        """Run until finished. A step that fails for good fails the run; a long history continues as new."""
        try:
            result = await self._until_finished()
        except (ActivityError, ChildWorkflowError, WorkflowAlreadyStartedError) as error:
            if is_cancelled_exception(error):
                raise
            result = await self._finish(root_sentence(error))
        if result is None:
            workflow.continue_as_new(TrainingRunInput(run=self._run, last_group=self._last_group))
        return result

    async def _until_finished(self) -> TrainingRunResult | None:
        """Do what is due, again and again. Return None when it is time for a new history."""
        plan = await call(
            activities.LOAD_PLAN,
            RunRef(run=self._run),
            queue=control_queue(self._run),
            options=options.database(),
        )
        await self._start_cells(plan)
        while not self._history_is_long(plan):
            decision = await self._await_decision()
            self._steps += 1
            if decision.kind == "start":
                await self._start_groups(plan, decision.groups)
            elif decision.kind == "burst":
                await self._burst(decision)
            elif decision.kind == "finish":
                return await self._finish(None)
            elif decision.kind == "fail":
                return await self._finish(decision.reason or "unknown")
            else:
                assert_never(decision.kind)
        return None

    def _history_is_long(self, plan: RunPlan) -> bool:
        return self._steps > 0 and (
            workflow.info().is_continue_as_new_suggested() or self._steps >= plan.steps_before_new_history
        )

    async def _await_decision(self) -> Decision:
        workflow.set_current_details("waiting for the next decision")
        return await call(
            activities.AWAIT_DECISION,
            DecisionInput(run=self._run, last_group=self._last_group),
            queue=control_queue(self._run),
            options=options.decision(),
            summary="what is due",
        )

    async def _start_cells(self, plan: RunPlan) -> None:
        for index in range(plan.num_cells):
            name = cell_id(self._run, index)
            self._cells.append(name)
            try:
                await workflow.start_child_workflow(
                    Cell.run,
                    CellInput(cell_id=name),
                    id=name,
                    parent_close_policy=ParentClosePolicy.ABANDON,
                    search_attributes=_attributes(self._run, (CELL, name)),
                )
            except WorkflowAlreadyStartedError:
                workflow.logger.debug("attached to %s", name)

    async def _start_groups(self, plan: RunPlan, starts: list[GroupStart]) -> None:
        for start in starts:
            try:
                await workflow.start_child_workflow(
                    QueryGroup.run,
                    QueryGroupInput(
                        group_id=start.group_id,
                        task=start.task,
                        size=start.size,
                        host=plan.host,
                        limits=plan.limits,
                    ),
                    id=start.group_id,
                    parent_close_policy=ParentClosePolicy.ABANDON,
                    static_summary=start.task,
                    search_attributes=_attributes(self._run, (GROUP, start.group_id), (TASK, start.task)),
                )
            except WorkflowAlreadyStartedError:
                workflow.logger.debug("attached to %s", start.group_id)
            self._last_group = max(self._last_group, start.index)

    async def _burst(self, decision: Decision) -> None:
        """Run the burst to its end. Nothing is decided meanwhile: dispatch happens at boundaries only."""
        workflow.set_current_details(f"burst from version {decision.version}")
        result = await workflow.execute_child_workflow(
            TrainingBurst.run,
            BurstInput(
                run=self._run,
                version=decision.version,
                num_updates=decision.num_updates,
                cell_id=cell_id(self._run, 0),
            ),
            id=burst_id(self._run, decision.version),
            static_summary=f"updates {decision.version + 1} to {decision.version + decision.num_updates}",
            search_attributes=_attributes(self._run),
        )
        label(POLICY_VERSION.value_set(result.version))

    async def _finish(self, failure: str | None) -> TrainingRunResult:
        """Set the run's terminal status and cancel its cells."""
        result = await call(
            activities.FINISH_RUN,
            FinishInput(run=self._run, failure=failure),
            queue=control_queue(self._run),
            options=options.database(),
        )
        # Cells outlive a continue-as-new of the run, so the run's end must cancel them.
        for cell in self._cells:
            try:
                await workflow.get_external_workflow_handle(cell).cancel()
            except ApplicationError as error:
                workflow.logger.info("cell %s had ended: %s", cell, error)
        return result


def _attributes(run: RunId, *more: tuple[SearchAttributeKey[str], str]) -> TypedSearchAttributes:
    return TypedSearchAttributes([SearchAttributePair(key, value) for key, value in ((RUN, run), *more)])
