"""N executions of one task, until every one is terminal."""

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

LIVES = 3
"""Times that a failed Rollout is started again from Postgres before its execution is excluded."""
LOOK_AGAIN = timedelta(seconds=60)
RolloutHandle = ChildWorkflowHandle[Rollout, RolloutResult]


@workflow.defn(name="QueryGroup")
class QueryGroup:
    """Starts or re-attaches its executions, waits for all of them, settles the group."""

    @workflow.run
    async def run(self, input: QueryGroupInput) -> QueryGroupResult:
        group = GroupId(input.group_id)
        names = [execution_id(group, index) for index in range(input.size)]
        await asyncio.gather(*(self._run_one(input, name) for name in names))
        while (result := await self._settle(group)).status == "running":
            # Executions that an earlier life of this workflow started answer through Postgres.
            await workflow.sleep(LOOK_AGAIN, summary="for executions started earlier")
            await asyncio.gather(*(self._run_one(input, name) for name in names))
        return result

    async def _run_one(self, input: QueryGroupInput, name: ExecutionId) -> None:
        """Run an execution to its end; one that fails as a workflow is taken up again, then excluded.

        One execution's failure is its own: the group goes on. Starting a terminal one again only reads it.
        """
        failure = ""
        for _ in range(LIVES):
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
        await self._exclude(name, failure)

    async def _start(self, input: QueryGroupInput, name: ExecutionId) -> RolloutHandle | None:
        """None when the execution runs already."""
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

    async def _exclude(self, name: ExecutionId, failure: str) -> None:
        await call(
            activities.FOLD_EXECUTION,
            FoldInput(execution_id=name, disposition=Disposition.EXCLUDED, detail=f"workflow: {failure}"),
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
