"""Create and find runs, revise their configuration, add their tasks."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import RunConfigRow, RunRow, TaskRow
from gyre.contracts.ids import RunId, task_id
from gyre.contracts.lifecycle import RunStatus

SECRET_BYTES = 32


@dataclass(frozen=True)
class NewTask:
    """A task to be added to a run."""

    name: str
    split: str
    """``train`` or ``heldout``."""
    path: str
    sha256: str
    """SHA-256 over the folder's files."""


def find(session: Session, run: str) -> RunRow | None:
    """Return the run's row as it is now, or None."""
    return session.get(RunRow, run, populate_existing=True)


def newest_first(session: Session) -> list[RunRow]:
    """Return all runs, the newest first."""
    return list(session.scalars(select(RunRow).order_by(RunRow.created_at.desc(), RunRow.id)))


def create(session: Session, run: RunId) -> bool:
    """Insert the run. Return False, and change nothing, if a run of that name exists."""
    values = {"id": run, "status": RunStatus.CREATED, "secret": secrets.token_bytes(SECRET_BYTES)}
    made = session.execute(insert(RunRow).values(**values).on_conflict_do_nothing().returning(RunRow.id))
    return made.first() is not None


def latest_config(session: Session, run: str) -> RunConfigRow | None:
    """Return the newest revision of the run's resolved configuration, or None for an unknown run."""
    query = select(RunConfigRow).where(RunConfigRow.run_id == run).order_by(RunConfigRow.revision.desc())
    return session.scalars(query.limit(1)).first()


def revise_config(session: Session, run: RunId, resolved: dict[str, Any], fingerprint: str) -> int:
    """Store the configuration as a new revision unless it equals the newest; return the revision in force."""
    # Prevents two concurrent revisions from getting the same number.
    session.get_one(RunRow, run, with_for_update={"key_share": True})
    latest = latest_config(session, run)
    if latest is not None and latest.resolved == resolved:
        return latest.revision
    revision = latest.revision + 1 if latest is not None else 0
    session.add(RunConfigRow(run_id=run, revision=revision, resolved=resolved, fingerprint=fingerprint))
    session.flush()
    return revision


def add_tasks(session: Session, run: RunId, tasks: Iterable[NewTask]) -> None:
    """Insert the run's tasks; existing ones stay as they are."""
    rows = [
        {
            "id": task_id(run, task.name),
            "run_id": run,
            "name": task.name,
            "split": task.split,
            "path": task.path,
            "sha256": task.sha256,
        }
        for task in tasks
    ]
    if rows:
        session.execute(insert(TaskRow).values(rows).on_conflict_do_nothing())


def ended_for_s(session: Session, run: str) -> float:
    """Return the seconds since the run ended; 0 while it has not."""
    age = func.extract("epoch", func.now() - RunRow.finished_at)
    return float(session.scalar(select(func.coalesce(age, 0)).where(RunRow.id == run)) or 0)
