"""Tables of cells, role transitions, leases and waits."""

from datetime import datetime

from sqlalchemy import ForeignKey, Identity
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base, created, one_of
from gyre.contracts.lifecycle import CellRole


class CellRow(Base):
    """A cell: its role, its current epoch and what its engine serves."""

    __tablename__ = "cell"
    __table_args__ = (one_of("role", CellRole),)

    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    index: Mapped[int]
    """0 is the core."""
    role: Mapped[str] = mapped_column(default=CellRole.ROLLOUT)
    epoch: Mapped[int] = mapped_column(default=0)
    """Fencing number, incremented at every start of the supervisor, engine or trainer."""
    capacity: Mapped[int]
    """Number of executions it serves at the same time (C_e)."""
    engine_url: Mapped[str | None]
    """None while no engine answers."""
    engine_version: Mapped[int | None]
    """The newest policy version that the engine has verified."""
    host: Mapped[str | None]
    updated_at: Mapped[datetime] = created()


class CellTransitionRow(Base):
    """One role change of a cell, written once per command."""

    __tablename__ = "cell_transition"
    __table_args__ = (one_of("to_role", CellRole),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    cell_id: Mapped[str] = mapped_column(ForeignKey("cell.id"), index=True)
    command_id: Mapped[str] = mapped_column(unique=True)
    epoch: Mapped[int]
    from_role: Mapped[str]
    to_role: Mapped[str]
    at: Mapped[datetime] = created()


class LeaseRow(Base):
    """A named lease with a fencing epoch. Times are those of Postgres."""

    __tablename__ = "lease"

    name: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    epoch: Mapped[int]
    expires_at: Mapped[datetime]


class WaitRow(Base):
    """A wait in progress: whose it is, what it waits for, since when, and how long it should take."""

    __tablename__ = "wait"

    id: Mapped[str] = mapped_column(primary_key=True)
    """``<owner>:<waits_for>``, so that a repeated wait keeps its age."""
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    owner: Mapped[str]
    waits_for: Mapped[str]
    expected_s: Mapped[float]
    since: Mapped[datetime] = created()
