"""Commands to cells, sent from the worker process. A cell's supervisor carries them out."""

from dataclasses import dataclass

from temporalio import activity
from temporalio.client import Client, WorkflowUpdateFailedError

from activities.heartbeats import heartbeats, poll
from db import cells, waits
from db.models import CellRow
from db.session import Database, transaction
from gyre.contracts.errors import CellRefused
from gyre.contracts.ids import run_of
from gyre.contracts.messages import CellCommand, CellRef, CellState
from gyre.durable.activities import AWAIT_CELL, COMMAND_CELL
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
                return cells.state_of(row)
            waits.begin(
                session,
                run=run_of(input.cell_id),
                owner=input.cell_id,
                waits_for="an engine that answers",
                expected_s=60,
            )
            return None
