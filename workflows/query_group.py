"""N executions of one task, until every one is terminal."""

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import (
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from gyre.contracts.ids import ExecutionId, GroupId, execution_id, run_of, short_queue
    from gyre.contracts.lifecycle import Disposition
    from gyre.contracts.messages import (
        FoldInput,
        GroupRef,
        QueryGroupInput,
        QueryGroupResult,
        RolloutInput,
        RolloutResult,
    )
    from gyre.durable import activities, options
    from gyre.durable.calls import call
    from gyre.durable.client import GROUP, RUN, TASK
    from workflows.rollout import Rollout
    from workflows.waiting import wake_or_poll

RolloutHandle = ChildWorkflowHandle[Rollout, RolloutResult]


@workflow.defn(name="QueryGroup")
class QueryGroup:
    """Starts or re-attaches its executions, waits for all of them, settles the group."""

    def __init__(self) -> None:
        self._woken = False

    @workflow.signal
    def wake(self) -> None:
        """Something was committed; look again."""
        self._woken = True

    @workflow.run
    async def run(self, given: QueryGroupInput) -> QueryGroupResult:
        group = GroupId(given.group_id)
        names = [execution_id(group, index) for index in range(given.size)]
        handles = [await self._start(given, name) for name in names]
        for name, handle in zip(names, handles, strict=True):
            if handle is not None:
                await self._finish(name, handle)
        result = await self._settle(group)
        while result.status == "running":
            # Executions that an earlier life of this workflow started answer through Postgres.
            await wake_or_poll(lambda: self._woken)
            self._woken = False
            result = await self._settle(group)
        return result

    async def _start(self, given: QueryGroupInput, name: ExecutionId) -> RolloutHandle | None:
        """None when the execution runs already."""
        attributes = [(RUN, run_of(name)), (GROUP, given.group_id), (TASK, given.task)]
        try:
            return await workflow.start_child_workflow(
                Rollout.run,
                RolloutInput(execution_id=name, task=given.task, host=given.host, limits=given.limits),
                id=name,
                parent_close_policy=ParentClosePolicy.ABANDON,
                static_summary=f"{given.task} on {given.host}",
                search_attributes=TypedSearchAttributes(
                    [SearchAttributePair(key, value) for key, value in attributes]
                ),
            )
        except WorkflowAlreadyStartedError:
            return None

    async def _finish(self, name: ExecutionId, handle: RolloutHandle) -> None:
        """One execution's failure is its own: it is excluded, with the reason, and the group goes on."""
        try:
            await handle
        except ChildWorkflowError as error:
            if is_cancelled_exception(error):
                raise
            await call(
                activities.FOLD_EXECUTION,
                FoldInput(
                    execution_id=name,
                    disposition=Disposition.EXCLUDED,
                    detail=f"workflow: {error.cause or error}"[:500],
                ),
                queue=short_queue(run_of(name)),
                options=options.database(),
            )

    async def _settle(self, group: GroupId) -> QueryGroupResult:
        return await call(
            activities.COMMIT_GROUP,
            GroupRef(group_id=group),
            queue=short_queue(run_of(group)),
            options=options.database(),
        )
