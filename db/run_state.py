"""The state of a run: its status, newest configuration, newest version and tasks."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db import runs
from db.models import PolicyVersionRow, RunRow, TaskRow
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import RunId
from gyre.contracts.lifecycle import RUN, RunStatus, advance

TERMINAL = {RunStatus.FINISHED, RunStatus.FAILED, RunStatus.STOPPED}


def newest_config(session: Session, run: str) -> dict[str, Any]:
    """Return the resolved run file of the newest revision. Raises BadInput for an unknown run."""
    found = runs.latest_config(session, run)
    if found is None:
        raise BadInput(f"run {run}: no such run")
    return found.resolved


def advance_status(session: Session, run: str, status: RunStatus, *, failure: str | None = None) -> None:
    """Move the run along its lifecycle; a repeat changes nothing. Leaving a terminal status is a resume."""
    row = session.get_one(RunRow, run, with_for_update={"key_share": True})
    if row.status == status:
        return
    if row.status in TERMINAL:
        row.resumed_at = func.now()
    row.status = advance(RUN, RunStatus(row.status), status)
    row.failure = failure
    row.finished_at = func.now() if status in TERMINAL else None


def mark_stopped(session: Session, run: RunId) -> RunStatus:
    """Mark the run as stopped unless it has ended by itself; return its status."""
    row = session.get_one(RunRow, run, with_for_update={"key_share": True})
    if row.status not in TERMINAL:
        advance_status(session, run, RunStatus.STOPPED)
    return RunStatus(row.status)


def newest_version(session: Session, run: str) -> int:
    """Return the newest completed policy version; 0 before the first update."""
    query = select(func.max(PolicyVersionRow.version)).where(PolicyVersionRow.run_id == run)
    return session.scalar(query) or 0


def task_ids(session: Session, run: str, split: str) -> Sequence[str]:
    """Return the ids of a split's tasks, ordered by name."""
    query = select(TaskRow.id).where(TaskRow.run_id == run, TaskRow.split == split)
    return session.scalars(query.order_by(TaskRow.name)).all()


def mark_published(session: Session, run: str, version: int, num_bytes: int) -> None:
    """Record that every serving engine has verified the version; a repeat keeps the first time."""
    row = session.get_one(PolicyVersionRow, (run, version), with_for_update=True)
    if row.published_at is None:
        row.published_at, row.published_bytes = func.now(), num_bytes
