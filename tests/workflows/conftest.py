"""Workflows on the real Temporal server, with activities that follow a script.

The activities are the seam: the stand-ins have the same names, queues and message types, and record their
inputs.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from gyre.contracts import ids
from gyre.contracts.ids import RunId
from gyre.durable import activities as names
from gyre.durable import client as durable
from gyre.durable.activities import Activity
from gyre.settings import Services
from workflows.registry import WORKFLOWS, runner

R = TypeVar("R")
ACTIVITIES = [each for each in vars(names).values() if isinstance(each, Activity)]
HOST = "h"


class Script:
    """Answers of activities by name. An answer is a value, an error or a function of (input, call number)."""

    def __init__(self, address: str) -> None:
        self.run = RunId(f"t{uuid.uuid4().hex[:8]}")
        self.asked: list[tuple[str, Any]] = []
        self._answers: dict[str, Any] = {}
        self._address = address

    def on(self, kind: Activity[Any, Any], answer: object) -> None:
        """Set the answer of an activity."""
        self._answers[kind.name] = answer

    def answer_to(self, kind: Activity[Any, Any]) -> Any:
        """Return the answer that `on` has set, for another answer to wrap."""
        return self._answers[kind.name]

    def of(self, kind: Activity[Any, Any]) -> list[Any]:
        """Return the inputs of an activity's calls, in order."""
        return [input for name, input in self.asked if name == kind.name]

    def play(self, scene: Callable[[Client], Awaitable[R]], *cell_epochs: int) -> R:
        """Run the scene with workers on every queue of the run and of these incarnations of its cell."""

        async def main() -> R:
            client = await durable.connect(self._address)
            async with AsyncExitStack() as stack:
                for number, queue in enumerate(self._queues(cell_epochs)):
                    worker = Worker(
                        client,
                        task_queue=queue,
                        workflows=[] if number else WORKFLOWS,
                        activities=[self._stand_in(kind) for kind in ACTIVITIES],
                        workflow_runner=runner(),
                    )
                    await stack.enter_async_context(worker)
                return await asyncio.wait_for(scene(client), 60)

        return asyncio.run(main())

    def _queues(self, cell_epochs: tuple[int, ...]) -> list[str]:
        cell = ids.cell_id(self.run, 0)
        return [
            ids.control_queue(self.run),
            ids.short_queue(self.run),
            ids.evaluate_queue(self.run),
            ids.host_queue(self.run, HOST),
            ids.host_short_queue(self.run, HOST),
            *(ids.cell_queue(cell, epoch) for epoch in cell_epochs),
        ]

    def _stand_in(self, kind: Activity[Any, Any]) -> Callable[..., Any]:
        async def play_part(input: BaseModel) -> BaseModel:
            self.asked.append((kind.name, input))
            answer = self._answers[kind.name]
            if callable(answer):
                answer = answer(input, len(self.of(kind)))
            if isinstance(answer, BaseException):
                raise answer
            return answer

        play_part.__annotations__ = {"input": kind.input, "return": kind.output}
        return activity.defn(name=kind.name)(play_part)


@pytest.fixture
def script(services: Services) -> Script:
    return Script(services.temporal_address)
