"""Snapshots: one per sealed attempt, written once."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import AttemptRow, SnapshotRow
from gyre.contracts.errors import Fenced
from gyre.contracts.ids import AttemptId, SnapshotId, execution_of, snapshot_id
from gyre.contracts.lifecycle import AttemptStatus


def require_sealed(session: Session, attempt: AttemptId) -> AttemptRow:
    """Return the attempt's row. Raises Fenced while it is open, because its harness may still write."""
    row = session.get(AttemptRow, attempt)
    if row is None or row.status != AttemptStatus.SEALED:
        raise Fenced(f"{attempt} is not sealed, so its work cannot be captured")
    return row


def of_attempt(session: Session, attempt: AttemptId) -> SnapshotRow | None:
    """Return the attempt's snapshot, or None."""
    return session.scalars(select(SnapshotRow).where(SnapshotRow.attempt_id == attempt)).first()


def get(session: Session, snapshot: SnapshotId) -> SnapshotRow | None:
    """Return a snapshot, or None."""
    return session.get(SnapshotRow, snapshot)


def record(
    session: Session, attempt: AttemptId, *, blob_key: str, num_files: int, num_bytes: int,
    manifest: dict[str, Any],
) -> SnapshotRow:  # fmt: skip
    """Write the snapshot's row and return it; a repeat returns the existing row unchanged.

    ``blob_key`` must name a confirmed blob. Raises Fenced if the attempt is not sealed.
    """
    require_sealed(session, attempt)
    values = {"id": snapshot_id(attempt), "attempt_id": attempt, "execution_id": execution_of(attempt)}
    session.execute(
        insert(SnapshotRow)
        .values(**values, blob_key=blob_key, num_files=num_files, num_bytes=num_bytes, manifest=manifest)
        .on_conflict_do_nothing()
    )
    return session.get_one(SnapshotRow, snapshot_id(attempt))
