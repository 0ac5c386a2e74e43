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
    async def await_cell(self, given: CellRef) -> CellState:
        """Return when the cell's engine answers; heartbeats meanwhile."""
        while True:
            activity.heartbeat()
            state = await asyncio.to_thread(self._read, given)
            if state is not None:
                return state
            await asyncio.sleep(0.25)

    @activity.defn(name=COMMAND_CELL.name)
    @translated
    async def command_cell(self, given: CellCommand) -> CellState:
        """Send the command to the Cell workflow as an Update under the command's own id."""
        handle = self.client.get_workflow_handle(given.cell_id)
        beat = asyncio.create_task(_beat())
        try:
            update = handle.execute_update  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
            return await update("command", given, id=given.command_id, result_type=CellState)
        except WorkflowUpdateFailedError as error:
            raise CellRefused(str(error.cause)) from error
        finally:
            beat.cancel()

    def _read(self, given: CellRef) -> CellState | None:
        with transaction(self.database) as session:
            row = session.get(CellRow, given.cell_id)
            if row is None or row.engine_url is None:
                waits.begin(
                    session,
                    run=run_of(given.cell_id),
                    owner=given.cell_id,
                    waits_for="an engine that answers",
                    expected_s=60,
                )
                return None
            waits.end(session, owner=given.cell_id)
            return state_of(row)


class CellProcesses(Protocol):
    """What a supervisor can do with its engine and trainer. Each call is idempotent."""

    async def enter(self, command: CellCommand) -> None:
        """Bring both processes into the role's state. Raises EngineFailed or TrainerFailed."""
        ...

    async def train(self, given: TrainInput) -> TrainResult:
        """Run the batch to its durable version."""
        ...

    async def publish(self, given: PublishInput) -> PublishResult:
        """Expose the version and have the engine pull and verify it."""
        ...


@dataclass(frozen=True)
class CellActivities:
    """On ``<run>/cell/<c>/<epoch>``."""

    database: Database
    processes: CellProcesses

    @activity.defn(name=ENTER_ROLE.name)
    @translated
    async def enter_role(self, given: CellCommand) -> CellState:
        """Do what the role needs, then commit the transition under the epoch fence."""
        await _beating(lambda: self.processes.enter(given))
        return await asyncio.to_thread(self._commit, given)

    @activity.defn(name=TRAIN_BATCH.name)
    @translated
    async def train_batch(self, given: TrainInput) -> TrainResult:
        """Train a stored batch; a version that is durable already is answered as it is."""
        return await _beating(lambda: self.processes.train(given))

    @activity.defn(name=PUBLISH_WEIGHTS.name)
    @translated
    async def publish_weights(self, given: PublishInput) -> PublishResult:
        """Move the weights to the cell's engine and say so in Postgres."""
        result = await _beating(lambda: self.processes.publish(given))
        await asyncio.to_thread(self._published, given, result)
        return result

    def _commit(self, given: CellCommand) -> CellState:
        with transaction(self.database) as session:
            return state_of(cells.enter(session, given))

    def _published(self, given: PublishInput, result: PublishResult) -> None:
        run = run_of(given.cell_id)
        with transaction(self.database) as session:
            if result.version != given.version:
                raise EngineFailed(f"engine serves {result.version}, not {given.version}")
            cells.serve_version(session, CellId(given.cell_id), given.epoch, result.version)
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
