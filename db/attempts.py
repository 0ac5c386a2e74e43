"""The fence around an attempt: open, guarded writes, seal."""

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import AttemptRow, ExecutionRow, ModelCallRow
from gyre.contracts.errors import Fenced
from gyre.contracts.ids import AttemptId, ExecutionId, attempt_id, run_of
from gyre.contracts.lifecycle import AttemptStatus, CallStatus, EndReason, ExecutionStatus


def latest(session: Session, execution: ExecutionId) -> AttemptRow | None:
    """The execution's newest attempt."""
    query = select(AttemptRow).where(AttemptRow.execution_id == execution).order_by(AttemptRow.number.desc())
    return session.scalars(query.limit(1)).first()


def open_attempt(session: Session, execution: ExecutionId, number: int, host: str) -> AttemptRow:
    """Open attempt ``number`` (again: returns the row as it is). Raises Fenced if the execution ended."""
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
    """Hold the open row FOR SHARE until the transaction ends, so that a seal waits for the write.

    Raises Fenced when the attempt is sealed or unknown.
    """
    query = select(AttemptRow).where(AttemptRow.id == attempt).with_for_update(read=True)
    row = session.scalars(query.execution_options(populate_existing=True)).first()
    if row is None or row.status != AttemptStatus.OPEN:
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
    """Close the attempt to writers for good. True for the call that sealed it.

    Its calls under way can never be committed any more, so they have failed.
    A repeat changes nothing, but that a failure found later (its workspace cannot be saved, say) is
    noted once, so that the next attempt can open.
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
    """Close whatever attempt of the execution is still open, as one that was cancelled."""
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
