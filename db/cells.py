"""Cells: their epochs, their roles and the versions their engines serve."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import CellRow, CellTransitionRow
from gyre.contracts.errors import Fenced
from gyre.contracts.ids import CellId, RunId, cell_id
from gyre.contracts.lifecycle import CELL, CellRole, advance
from gyre.contracts.messages import CellCommand, CellState


@dataclass(frozen=True, slots=True)
class ServingCell:
    """A cell that takes model calls."""

    id: str
    engine_url: str
    capacity: int


def create(session: Session, run: RunId, index: int, capacity: int) -> None:
    """Insert the cell's row as LOST, which it stays until its supervisor boots.

    If the row exists, only set its capacity, which a resumed run may have changed.
    """
    values = {"id": cell_id(run, index), "run_id": run, "index": index, "capacity": capacity}
    session.execute(
        insert(CellRow)
        .values(**values, role=CellRole.LOST, epoch=0)
        .on_conflict_do_update(index_elements=[CellRow.id], set_={"capacity": capacity})
    )


def mint_epoch(session: Session, cell: CellId, host: str) -> int:
    """Begin a new incarnation of the cell and return its epoch; writes under older epochs are refused."""
    row = session.execute(
        update(CellRow)
        .where(CellRow.id == cell)
        .values(
            epoch=CellRow.epoch + 1, role=CellRole.LOST, engine_url=None, host=host, updated_at=func.now()
        )
        .returning(CellRow.epoch)
    )
    return int(row.scalar_one())


def begin_serving(session: Session, cell: CellId, epoch: int, engine_url: str, version: int) -> None:
    """Put the cell into ROLLOUT, because its engine answers. Raises Fenced unless ``epoch`` is current."""
    row = session.get_one(CellRow, cell, with_for_update=True)
    _fence(row, epoch)
    row.role = advance(CELL, CellRole(row.role), CellRole.ROLLOUT)
    row.engine_url, row.engine_version, row.updated_at = engine_url, version, func.now()


def serve_version(session: Session, cell: CellId, epoch: int, version: int) -> None:
    """Record the version that the engine has verified. Raises Fenced unless ``epoch`` is current."""
    row = session.get_one(CellRow, cell, with_for_update=True)
    _fence(row, epoch)
    row.engine_version, row.updated_at = version, func.now()


def _fence(row: CellRow, epoch: int) -> None:
    if row.epoch != epoch:
        raise Fenced(f"{row.id} is at epoch {row.epoch}; epoch {epoch} is over")


def enter(session: Session, command: CellCommand) -> CellState:
    """Apply a role change once per command id and return the cell's state.

    Raises Fenced unless the command's epoch and ``from_role`` are current, IllegalTransition for a change
    that the lifecycle does not allow.
    """
    row = session.get_one(CellRow, command.cell_id, with_for_update=True)
    _fence(row, command.epoch)
    done = select(CellTransitionRow.id).where(
        CellTransitionRow.cell_id == row.id, CellTransitionRow.command_id == command.command_id
    )
    # A repeat must succeed although its role change has been made, so this comes before the role is compared.
    if session.scalars(done).first() is not None:
        return state_of(row)
    if row.role != command.from_role:
        raise Fenced(f"{row.id} is in {row.role}, the command expects {command.from_role}")
    row.role = advance(CELL, CellRole(row.role), command.to_role)
    row.updated_at = func.now()
    session.add(
        CellTransitionRow(
            cell_id=row.id,
            command_id=command.command_id,
            epoch=command.epoch,
            from_role=command.from_role,
            to_role=command.to_role,
        )
    )
    session.flush()
    return state_of(row)


def state_of(row: CellRow) -> CellState:
    """Return the part of a cell's row that workflows see."""
    return CellState(
        cell_id=row.id, role=CellRole(row.role), epoch=row.epoch, version=row.engine_version or 0
    )


def of_run(session: Session, run: str) -> Sequence[CellRow]:
    """Return the run's cells, the core first."""
    return session.scalars(select(CellRow).where(CellRow.run_id == run).order_by(CellRow.index)).all()


def serving(session: Session, run: str) -> list[ServingCell]:
    """Return the cells that take calls, in index order: those in ROLLOUT whose engine answers."""
    query = (
        select(CellRow.id, CellRow.engine_url, CellRow.capacity)
        .where(CellRow.run_id == run, CellRow.role == CellRole.ROLLOUT, CellRow.engine_url.is_not(None))
        .order_by(CellRow.index)
    )
    return [ServingCell(name, str(url), capacity) for name, url, capacity in session.execute(query)]
