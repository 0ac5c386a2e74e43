"""Cells, leases and waits."""

from datetime import datetime

from sqlalchemy import ForeignKey, Identity
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base, created, one_of
from gyre.contracts.lifecycle import CellRole


class CellRow(Base):
    __tablename__ = "cell"
    __table_args__ = (one_of("role", CellRole),)

    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    index: Mapped[int]
    """0 is the core."""
    role: Mapped[str] = mapped_column(default=CellRole.ROLLOUT)
    epoch: Mapped[int] = mapped_column(default=0)
    """Minted here at every start of the supervisor, engine or trainer."""
    capacity: Mapped[int]
    """Concurrent executions it serves (C_e)."""
    engine_url: Mapped[str | None]
    """None while no engine answers."""
    engine_version: Mapped[int | None]
    """Policy version the engine verified last."""
    host: Mapped[str | None]
    updated_at: Mapped[datetime] = created()


class CellTransitionRow(Base):
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
    """A named lease with a fencing epoch; times are Postgres ``now()``."""

    __tablename__ = "lease"

    name: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    epoch: Mapped[int]
    expires_at: Mapped[datetime]


class WaitRow(Base):
    """Something that waits: what for, since when, whose it is and how long it should take."""

    __tablename__ = "wait"

    id: Mapped[str] = mapped_column(primary_key=True)
    """``<owner>:<what>``, so that a repeated wait keeps its age."""
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    owner: Mapped[str]
    waits_for: Mapped[str]
    expected_s: Mapped[float]
    since: Mapped[datetime] = created()
