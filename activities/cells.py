"""Commands to cells.

``CellControlActivities`` run in the worker process, next to the workflows. ``CellActivities`` carry a command
out; a cell's supervisor registers them on the queue of the cell's current incarnation.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from temporalio import activity
from temporalio.client import Client, WorkflowUpdateFailedError

from activities.heartbeats import heartbeats, poll
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


@dataclass(frozen=True)
class CellControlActivities:
    """Cell activities on ``<run>/control``."""

    database: Database
    client: Client

    @activity.defn(name=AWAIT_CELL.name)
    @translated
    async def await_cell(self, input: CellRef) -> CellState:
        """Return the cell's state once its engine answers."""
        return await poll(lambda: self._serving_state(input))

    @activity.defn(name=COMMAND_CELL.name)
    @translated
    async def command_cell(self, input: CellCommand) -> CellState:
        """Send the command to the Cell workflow as an Update whose id is the command's."""
        handle = self.client.get_workflow_handle(input.cell_id)
        update = handle.execute_update  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        async with heartbeats():
            try:
                return await update("command", input, id=input.command_id, result_type=CellState)
            except WorkflowUpdateFailedError as error:
                raise CellRefused(str(error.cause)) from error

    def _serving_state(self, input: CellRef) -> CellState | None:
        """Read the cell's state; record a wait and return None while it has no engine."""
        with transaction(self.database) as session:
            row = session.get(CellRow, input.cell_id)
            if row is not None and row.engine_url is not None:
                waits.end(session, owner=input.cell_id)
                return _state_of(row)
            waits.begin(
                session,
                run=run_of(input.cell_id),
                owner=input.cell_id,
                waits_for="an engine that answers",
                expected_s=60,
            )
            return None


class CellProcesses(Protocol):
    """A supervisor's power over its engine and trainer. Every call is idempotent."""

    async def enter(self, command: CellCommand) -> None:
        """Bring both processes into the role's state. Raises EngineFailed or TrainerFailed."""
        ...

    async def train(self, input: TrainInput, /) -> TrainResult:
        """Train the batch until its version is durable."""
        ...

    async def publish(self, input: PublishInput, /) -> PublishResult:
        """Expose the version and have the engine pull and verify it."""
        ...


@dataclass(frozen=True)
class CellActivities:
    """Effects of commands, on ``<run>/cell/<c>/<epoch>``."""

    database: Database
    processes: CellProcesses

    @activity.defn(name=ENTER_ROLE.name)
    @translated
    async def enter_role(self, input: CellCommand) -> CellState:
        """Do what the role needs, then commit the transition under the epoch fence."""
        async with heartbeats():
            await self.processes.enter(input)
        return await asyncio.to_thread(self._commit_role, input)

    @activity.defn(name=TRAIN_BATCH.name)
    @translated
    async def train_batch(self, input: TrainInput) -> TrainResult:
        """Train a stored batch. A version that is already durable is returned as it is."""
        async with heartbeats():
            return await self.processes.train(input)

    @activity.defn(name=PUBLISH_WEIGHTS.name)
    @translated
    async def publish_weights(self, input: PublishInput) -> PublishResult:
        """Move the weights to the cell's engine and record in Postgres that it serves them."""
        async with heartbeats():
            result = await self.processes.publish(input)
        await asyncio.to_thread(self._commit_version, input, result)
        return result

    def _commit_role(self, input: CellCommand) -> CellState:
        with transaction(self.database) as session:
            return _state_of(cells.enter(session, input))

    def _commit_version(self, input: PublishInput, result: PublishResult) -> None:
        with transaction(self.database) as session:
            if result.version != input.version:
                raise EngineFailed(f"the engine serves version {result.version}, not {input.version}")
            cells.serve_version(session, CellId(input.cell_id), input.epoch, result.version)
            run_state.mark_published(session, run_of(input.cell_id), result.version, result.num_bytes)


def _state_of(row: CellRow) -> CellState:
    return CellState(
        cell_id=row.id, role=CellRole(row.role), epoch=row.epoch, version=row.engine_version or 0
    )
