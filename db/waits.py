"""Waits in progress: who waits for what, since when, and how long it should take."""

from sqlalchemy import delete
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import WaitRow


def begin(session: Session, *, run: str, owner: str, waits_for: str, expected_s: float) -> None:
    """Record that ``owner`` waits. A repeat keeps the wait's age; another reason replaces it."""
    end(session, owner=owner, keep=waits_for)
    values = {"id": f"{owner}:{waits_for}", "run_id": run, "owner": owner}
    session.execute(
        insert(WaitRow).values(**values, waits_for=waits_for, expected_s=expected_s).on_conflict_do_nothing()
    )


def end(session: Session, *, owner: str, keep: str | None = None) -> None:
    """Remove the owner's waits, except the one for ``keep``."""
    query = delete(WaitRow).where(WaitRow.owner == owner)
    session.execute(query if keep is None else query.where(WaitRow.waits_for != keep))
