"""Snapshots of sealed attempts: one each, written once."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import AttemptRow, SnapshotRow
from gyre.contracts.errors import Fenced
from gyre.contracts.ids import AttemptId, SnapshotId, execution_of, snapshot_id
from gyre.contracts.lifecycle import AttemptStatus


def require_sealed(session: Session, attempt: AttemptId) -> AttemptRow:
    """The attempt's row. Raises Fenced while it is open: its harness may still write."""
    row = session.get(AttemptRow, attempt)
    if row is None or row.status != AttemptStatus.SEALED:
        raise Fenced(f"{attempt} is not sealed, so its work cannot be captured")
    return row


def of_attempt(session: Session, attempt: AttemptId) -> SnapshotRow | None:
    """The attempt's snapshot, if it left one."""
    return session.scalars(select(SnapshotRow).where(SnapshotRow.attempt_id == attempt)).first()


def get(session: Session, snapshot: SnapshotId) -> SnapshotRow | None:
    return session.get(SnapshotRow, snapshot)


def record(
    session: Session, attempt: AttemptId, *, blob_key: str, num_files: int, num_bytes: int,
    manifest: dict[str, Any],
) -> SnapshotRow:  # fmt: skip
    """Write the snapshot's row (again: returns the row as it is).

    Raises Fenced if the attempt is not sealed. ``blob_key`` must be a confirmed blob.
    """
    require_sealed(session, attempt)
    values = {"id": snapshot_id(attempt), "attempt_id": attempt, "execution_id": execution_of(attempt)}
    session.execute(
        insert(SnapshotRow)
        .values(**values, blob_key=blob_key, num_files=num_files, num_bytes=num_bytes, manifest=manifest)
        .on_conflict_do_nothing()
    )
    return session.get_one(SnapshotRow, snapshot_id(attempt))
