"""Epochs fence off dead incarnations of a cell, and each command counts once."""

import pytest
from sqlalchemy import func, select

from db import cells
from db.models import CellTransitionRow
from db.session import Database, transaction
from gyre.contracts.errors import Fenced, IllegalTransition
from gyre.contracts.ids import CellId, GroupId, RunId, cell_id
from gyre.contracts.lifecycle import CellRole
from gyre.contracts.messages import CellCommand

CELL = cell_id(RunId("r"), 0)


@pytest.fixture
def epoch(database: Database, group: GroupId) -> int:
    """The current epoch of a serving cell in its second incarnation."""
    with transaction(database) as session:
        cells.create(session, RunId("r"), 0, 4)
        cells.mint_epoch(session, CELL, "h")
        epoch = cells.mint_epoch(session, CELL, "h")
        cells.begin_serving(session, CELL, epoch, "http://e", 3)
    return epoch


def command(epoch: int, to_role: CellRole = CellRole.DRAINING) -> CellCommand:
    return CellCommand(
        command_id=f"c/{to_role}",
        cell_id=CELL,
        epoch=epoch,
        from_role=CellRole.ROLLOUT,
        to_role=to_role,
    )


def test_a_repeated_command_counts_once(database: Database, epoch: int) -> None:
    for _ in range(2):
        with transaction(database) as session:
            assert cells.enter(session, command(epoch)).role == CellRole.DRAINING
    with transaction(database) as session:
        assert session.scalar(select(func.count()).select_from(CellTransitionRow)) == 1


def test_writes_of_a_dead_incarnation_are_refused(database: Database, epoch: int) -> None:
    with pytest.raises(Fenced, match="epoch 1 is over"), transaction(database) as session:
        cells.begin_serving(session, CellId(CELL), 1, "http://old", 9)
    with pytest.raises(Fenced), transaction(database) as session:
        cells.enter(session, command(epoch - 1))
    with pytest.raises(Fenced), transaction(database) as session:
        cells.serve_version(session, CELL, epoch - 1, 9)


def test_a_command_cannot_skip_a_role(database: Database, epoch: int) -> None:
    with pytest.raises(IllegalTransition), transaction(database) as session:
        cells.enter(session, command(epoch, CellRole.TRAINING))


def test_only_cells_in_rollout_take_calls(database: Database, epoch: int) -> None:
    with transaction(database) as session:
        assert cells.serving(session, "r") == [cells.ServingCell(CELL, "http://e", 4)]
        cells.enter(session, command(epoch))
        assert cells.serving(session, "r") == []
        cells.mint_epoch(session, CELL, "h")
        assert cells.of_run(session, "r")[0].engine_url is None


def test_creating_a_cell_again_changes_its_capacity_only(database: Database, epoch: int) -> None:
    with transaction(database) as session:
        cells.create(session, RunId("r"), 0, 12)
    with transaction(database) as session:
        row = cells.of_run(session, "r")[0]
        assert (row.capacity, row.role, row.epoch) == (12, CellRole.ROLLOUT, epoch)
