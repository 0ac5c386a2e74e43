"""N executions of one task, until each of them is terminal."""

import asyncio
from datetime import timedelta

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
    from gyre.durable.failures import root_sentence
    from workflows.rollout import Rollout

MAX_STARTS = 3
"""Starts of a Rollout that keeps failing as a workflow, before its execution is excluded."""
POLL = timedelta(seconds=60)
"""Period of polls for executions that an earlier run of this workflow started."""
RolloutHandle = ChildWorkflowHandle[Rollout, RolloutResult]


@workflow.defn(name="QueryGroup")
class QueryGroup:
    """Starts its executions, or finds them running, waits for all of them and settles the group."""

    @workflow.run
    async def run(self, input: QueryGroupInput) -> QueryGroupResult:
        group = GroupId(input.group_id)
        names = [execution_id(group, index) for index in range(input.size)]
        await asyncio.gather(*(self._run_one(input, name) for name in names))
        while (result := await self._settle(group)).status == "running":
            # Rollouts that an earlier run of this workflow started answer through Postgres only.
            await workflow.sleep(POLL, summary="for executions started earlier")
            await asyncio.gather(*(self._run_one(input, name) for name in names))
        return result

    async def _run_one(self, input: QueryGroupInput, name: ExecutionId) -> None:
        """Run an execution to its end. If its workflow fails, start it again; in the end exclude it.

        The other executions of the group go on. Starting a terminal execution again only reads its outcome.
        """
        failure = ""
        for _ in range(MAX_STARTS):
            handle = await self._start(input, name)
            if handle is None:
                return
            try:
                await handle
            except ChildWorkflowError as error:
                if is_cancelled_exception(error):
                    raise
                failure = root_sentence(error)
            else:
                return
        detail = f"workflow: {failure}"
        await call(
            activities.FOLD_EXECUTION,
            FoldInput(execution_id=name, disposition=Disposition.EXCLUDED, detail=detail),
            queue=short_queue(run_of(name)),
            options=options.database(),
        )

    async def _start(self, input: QueryGroupInput, name: ExecutionId) -> RolloutHandle | None:
        """Start the execution's Rollout. Return None if it is already running."""
        attributes = [(RUN, run_of(name)), (GROUP, input.group_id), (TASK, input.task)]
        try:
            return await workflow.start_child_workflow(
                Rollout.run,
                RolloutInput(execution_id=name, task=input.task, host=input.host, limits=input.limits),
                id=name,
                parent_close_policy=ParentClosePolicy.ABANDON,
                static_summary=f"{input.task} on {input.host}",
                search_attributes=TypedSearchAttributes(
                    [SearchAttributePair(key, value) for key, value in attributes]
                ),
            )
        except WorkflowAlreadyStartedError:
            return None

    async def _settle(self, group: GroupId) -> QueryGroupResult:
        return await call(
            activities.COMMIT_GROUP,
            GroupRef(group_id=group),
            queue=short_queue(run_of(group)),
            options=options.database(),
        )
