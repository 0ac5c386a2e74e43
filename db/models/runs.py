"""Runs, their configuration revisions and their tasks."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base, created, one_of
from gyre.contracts.lifecycle import RunStatus


class RunRow(Base):
    __tablename__ = "run"
    __table_args__ = (one_of("status", RunStatus),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """The run's name."""
    status: Mapped[str] = mapped_column(default=RunStatus.CREATED)
    failure: Mapped[str | None]
    """One sentence why the run failed."""
    secret: Mapped[bytes] = mapped_column(LargeBinary)
    """Key of the HMAC that makes attempt tokens; never leaves Postgres and the processes that check."""
    created_at: Mapped[datetime] = created()
    finished_at: Mapped[datetime | None]
    """None while it has not ended, and again once it is resumed."""
    resumed_at: Mapped[datetime | None]
    """When it was last taken up after it had failed or been stopped."""


class RunConfigRow(Base):
    __tablename__ = "run_config"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), primary_key=True)
    revision: Mapped[int] = mapped_column(primary_key=True)
    resolved: Mapped[dict[str, Any]]
    """The whole resolved run file, services left out."""
    fingerprint: Mapped[str]
    created_at: Mapped[datetime] = created()


class TaskRow(Base):
    __tablename__ = "task"

    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    name: Mapped[str]
    split: Mapped[str]
    """``train`` or ``heldout``."""
    path: Mapped[str]
    """The Harbor-format folder."""
    sha256: Mapped[str]
    """Of the folder's files, so that a changed task is noticed."""
