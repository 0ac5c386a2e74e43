"""Commands to cells. ``CellControlActivities`` run beside the workflows; the effects of a command,
``CellActivities``, are registered by a cell's supervisor on the queue of its present life."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from temporalio import activity
from temporalio.client import Client, WorkflowUpdateFailedError

from db import cells, run_state, waits
from db.models import CellRow
from db.session import Database, transaction
from gyre.contracts.errors import CellRefused, EngineFailed
from gyre.contracts.ids import CellId, run_of
from gyre.contracts.lifecycle import CellRole
from gyre.contracts.messages import (
    CellCommand,
    CellRef,
    CellState,
    PublishInput,
    PublishResult,
    TrainInput,
    TrainResult,
)
from gyre.durable.activities import (
    AWAIT_CELL,
    COMMAND_CELL,
    ENTER_ROLE,
    PUBLISH_WEIGHTS,
    TRAIN_BATCH,
)
from gyre.durable.failures import translated

R = TypeVar("R")
HEARTBEAT_S = 2.0


@dataclass(frozen=True)
class CellControlActivities:
    """On ``<run>/control``."""

    database: Database
    client: Client

    @activity.defn(name=AWAIT_CELL.name)
    @translated
    async def await_cell(self, input: CellRef) -> CellState:
        """Return when the cell's engine answers; heartbeats meanwhile."""
        while True:
            activity.heartbeat()
            state = await asyncio.to_thread(self._read, input)
            if state is not None:
                return state
            await asyncio.sleep(0.25)

    @activity.defn(name=COMMAND_CELL.name)
    @translated
    async def command_cell(self, input: CellCommand) -> CellState:
        """Send the command to the Cell workflow as an Update under the command's own id."""
        handle = self.client.get_workflow_handle(input.cell_id)
        beat = asyncio.create_task(_beat())
        try:
            update = handle.execute_update  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
            return await update("command", input, id=input.command_id, result_type=CellState)
        except WorkflowUpdateFailedError as error:
            raise CellRefused(str(error.cause)) from error
        finally:
            beat.cancel()

    def _read(self, input: CellRef) -> CellState | None:
        with transaction(self.database) as session:
            row = session.get(CellRow, input.cell_id)
            if row is None or row.engine_url is None:
                waits.begin(
                    session,
                    run=run_of(input.cell_id),
                    owner=input.cell_id,
                    waits_for="an engine that answers",
                    expected_s=60,
                )
                return None
            waits.end(session, owner=input.cell_id)
            return state_of(row)


class CellProcesses(Protocol):
    """What a supervisor can do with its engine and trainer. Each call is idempotent."""

    async def enter(self, command: CellCommand) -> None:
        """Bring both processes into the role's state. Raises EngineFailed or TrainerFailed."""
        ...

    async def train(self, input: TrainInput) -> TrainResult:
        """Run the batch to its durable version."""
        ...

    async def publish(self, input: PublishInput) -> PublishResult:
        """Expose the version and have the engine pull and verify it."""
        ...


@dataclass(frozen=True)
class CellActivities:
    """On ``<run>/cell/<c>/<epoch>``."""

    database: Database
    processes: CellProcesses

    @activity.defn(name=ENTER_ROLE.name)
    @translated
    async def enter_role(self, input: CellCommand) -> CellState:
        """Do what the role needs, then commit the transition under the epoch fence."""
        await _beating(lambda: self.processes.enter(input))
        return await asyncio.to_thread(self._commit, input)

    @activity.defn(name=TRAIN_BATCH.name)
    @translated
    async def train_batch(self, input: TrainInput) -> TrainResult:
        """Train a stored batch; a version that is durable already is answered as it is."""
        return await _beating(lambda: self.processes.train(input))

    @activity.defn(name=PUBLISH_WEIGHTS.name)
    @translated
    async def publish_weights(self, input: PublishInput) -> PublishResult:
        """Move the weights to the cell's engine and say so in Postgres."""
        result = await _beating(lambda: self.processes.publish(input))
        await asyncio.to_thread(self._published, input, result)
        return result

    def _commit(self, input: CellCommand) -> CellState:
        with transaction(self.database) as session:
            return state_of(cells.enter(session, input))

    def _published(self, input: PublishInput, result: PublishResult) -> None:
        run = run_of(input.cell_id)
        with transaction(self.database) as session:
            if result.version != input.version:
                raise EngineFailed(f"engine serves {result.version}, not {input.version}")
            cells.serve_version(session, CellId(input.cell_id), input.epoch, result.version)
            run_state.mark_published(session, run, result.version, result.num_bytes)


def state_of(row: CellRow) -> CellState:
    return CellState(
        cell_id=row.id, role=CellRole(row.role), epoch=row.epoch, version=row.engine_version or 0
    )


async def _beating(work: Callable[[], Awaitable[R]]) -> R:
    """Heartbeat while the work goes on, so that a dead supervisor is noticed in seconds."""
    beat = asyncio.create_task(_beat())
    try:
        return await work()
    finally:
        beat.cancel()


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(HEARTBEAT_S)
