"""Blob rows: the proof that an S3 object exists."""

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import BlobRow
from gyre.contracts.lifecycle import BlobStatus


def reserve(session: Session, key: str, sha256: str, num_bytes: int) -> bool:
    """Write the row before the upload. Return False if the object is already confirmed."""
    values = {"key": key, "sha256": sha256, "num_bytes": num_bytes}
    session.execute(insert(BlobRow).values(**values).on_conflict_do_nothing())
    # A row that an interrupted upload left reserved is used again: the key is the hash of the content.
    return session.get_one(BlobRow, key).status != BlobStatus.CONFIRMED


def confirm(session: Session, key: str) -> None:
    """Mark the object as complete in S3; a repeat changes nothing."""
    session.execute(
        update(BlobRow)
        .where(BlobRow.key == key, BlobRow.status == BlobStatus.RESERVED)
        .values(status=BlobStatus.CONFIRMED, confirmed_at=func.now())
    )


def confirmed(session: Session, key: str) -> BlobRow | None:
    """Return the row of a complete object, or None."""
    query = select(BlobRow).where(BlobRow.key == key, BlobRow.status == BlobStatus.CONFIRMED)
    return session.scalars(query).first()
