"""Rows that prove which S3 objects exist."""

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import Blob
from gyre.contracts.lifecycle import BlobStatus


def reserve(session: Session, key: str, sha256: str, num_bytes: int) -> bool:
    """Write the row before the upload. False if the object is already confirmed."""
    values = {"key": key, "sha256": sha256, "num_bytes": num_bytes}
    session.execute(insert(Blob).values(**values).on_conflict_do_nothing())
    return session.get_one(Blob, key).status != BlobStatus.CONFIRMED


def confirm(session: Session, key: str) -> None:
    """Say that the object is complete in S3."""
    session.execute(
        update(Blob)
        .where(Blob.key == key, Blob.status == BlobStatus.RESERVED)
        .values(status=BlobStatus.CONFIRMED, confirmed_at=func.now())
    )


def confirmed(session: Session, key: str) -> Blob | None:
    """The row of a complete object, or None."""
    query = select(Blob).where(Blob.key == key, Blob.status == BlobStatus.CONFIRMED)
    return session.scalars(query).first()
