"""Calls from workflows: activities by their typed names, and search attributes."""

from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import SearchAttributeUpdate

from gyre.durable.activities import Activity
from gyre.durable.options import Options

In = TypeVar("In", bound=BaseModel)
Out = TypeVar("Out", bound=BaseModel)


async def call(
    activity: Activity[In, Out], input: In, *, queue: str, options: Options, summary: str | None = None
) -> Out:
    """Run an activity on a queue. Raises temporalio's ActivityError if it fails for good."""
    return await workflow.execute_activity(
        activity.name, input, task_queue=queue, result_type=activity.output, summary=summary, **options
    )


def label(*updates: "SearchAttributeUpdate[Any]") -> None:
    """Set search attributes of the current workflow."""
    workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType]
