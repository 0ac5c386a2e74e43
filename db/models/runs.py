"""Tables of runs, their configuration revisions and their tasks."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base, created, one_of
from gyre.contracts.lifecycle import RunStatus


class RunRow(Base):
    """A run and where it is in its lifecycle."""

    __tablename__ = "run"
    __table_args__ = (one_of("status", RunStatus),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """The run's name."""
    status: Mapped[str] = mapped_column(default=RunStatus.CREATED)
    failure: Mapped[str | None]
    """One sentence that says why the run failed."""
    secret: Mapped[bytes] = mapped_column(LargeBinary)
    """HMAC key of attempt tokens. It never leaves Postgres and the processes that make or check tokens."""
    created_at: Mapped[datetime] = created()
    finished_at: Mapped[datetime | None]
    """When the run ended; None before that, and again after a resume."""
    resumed_at: Mapped[datetime | None]
    """When the run was last resumed after it had failed or been stopped."""


class RunConfigRow(Base):
    """One revision of a run's configuration; a resume may add one."""

    __tablename__ = "run_config"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), primary_key=True)
    revision: Mapped[int] = mapped_column(primary_key=True)
    resolved: Mapped[dict[str, Any]]
    """The whole resolved run file without its services."""
    fingerprint: Mapped[str]
    created_at: Mapped[datetime] = created()


class TaskRow(Base):
    """A task of a run."""

    __tablename__ = "task"

    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    name: Mapped[str]
    split: Mapped[str]
    """``train`` or ``heldout``."""
    path: Mapped[str]
    """Path of the Harbor-format folder."""
    sha256: Mapped[str]
    """SHA-256 over the folder's files, so that a changed task is noticed."""
