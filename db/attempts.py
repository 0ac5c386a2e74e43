"""Attempts and their fence: open, guard writes, seal."""

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import AttemptRow, ExecutionRow, ModelCallRow
from gyre.contracts.errors import Fenced
from gyre.contracts.ids import AttemptId, ExecutionId, attempt_id, run_of
from gyre.contracts.lifecycle import AttemptStatus, CallStatus, EndReason, ExecutionStatus


def latest(session: Session, execution: ExecutionId) -> AttemptRow | None:
    """Return the execution's newest attempt, or None before the first."""
    query = select(AttemptRow).where(AttemptRow.execution_id == execution).order_by(AttemptRow.number.desc())
    return session.scalars(query.limit(1)).first()


def open_attempt(session: Session, execution: ExecutionId, number: int, host: str) -> AttemptRow:
    """Open attempt ``number`` and return its row; a repeat returns the existing row unchanged.

    Raises Fenced if the execution has ended.
    """
    # FOR NO KEY UPDATE, here and elsewhere: inserts that refer to the row need not wait for this lock.
    row = session.get(ExecutionRow, execution, with_for_update={"key_share": True})
    if row is None or row.status == ExecutionStatus.TERMINAL:
        raise Fenced(f"{execution} is terminal, so no attempt can be opened")
    if row.status == ExecutionStatus.PENDING:
        row.status, row.started_at = ExecutionStatus.RUNNING, func.now()
    name = attempt_id(execution, number)
    values = {"id": name, "execution_id": execution, "run_id": run_of(execution)}
    session.execute(
        insert(AttemptRow)
        .values(**values, number=number, host=host, status=AttemptStatus.OPEN)
        .on_conflict_do_nothing()
    )
    return session.get_one(AttemptRow, name)


def lock_open(session: Session, attempt: AttemptId) -> AttemptRow:
    """Lock the open attempt FOR SHARE until the transaction ends, so that a seal waits for the write.

    Raises Fenced if the attempt is sealed or unknown.
    """
    query = select(AttemptRow).where(AttemptRow.id == attempt).with_for_update(read=True)
    # The session may hold the row as it was before a seal: read it again under the lock.
    row = session.scalars(query.execution_options(populate_existing=True)).first()
    if row is None or row.status != AttemptStatus.OPEN:
        # The audit finds late calls by the words "is sealed" in their failure.
        raise Fenced(f"{attempt} is sealed: nothing can be recorded for it any more")
    return row


def seal(
    session: Session,
    attempt: AttemptId,
    reason: EndReason,
    *,
    exit_code: int | None = None,
    failure: str | None = None,
) -> bool:
    """Close the attempt to writers for good. Return True for the one call that sealed it.

    Calls still in flight can never be committed, so they are marked failed. A repeat only records a
    failure that was found after the seal (say, its workspace cannot be saved), once, so that the next
    attempt can open.
    """
    sealed = session.execute(
        update(AttemptRow)
        .where(AttemptRow.id == attempt, AttemptRow.status == AttemptStatus.OPEN)
        .values(
            status=AttemptStatus.SEALED,
            end_reason=reason,
            exit_code=exit_code,
            failure=failure,
            sealed_at=func.now(),
        )
        .returning(AttemptRow.id)
    )
    if sealed.first() is not None:
        _fail_calls(session, attempt)
        return True
    if failure is not None:
        session.execute(
            update(AttemptRow)
            .where(AttemptRow.id == attempt, AttemptRow.failure.is_(None))
            .values(failure=failure)
        )
    return False


def seal_all(session: Session, execution: ExecutionId, failure: str) -> None:
    """Seal the execution's open attempts as cancelled."""
    query = select(AttemptRow.id).where(
        AttemptRow.execution_id == execution, AttemptRow.status == AttemptStatus.OPEN
    )
    for attempt in session.scalars(query).all():
        seal(session, AttemptId(attempt), EndReason.CANCELLED, failure=failure)


def _fail_calls(session: Session, attempt: AttemptId) -> None:
    session.execute(
        update(ModelCallRow)
        .where(ModelCallRow.attempt_id == attempt, ModelCallRow.status == CallStatus.IN_FLIGHT)
        .values(status=CallStatus.FAILED, failure="sealed", lease_owner=None, lease_expires_at=None)
    )
