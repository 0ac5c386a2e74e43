"""Executions: the stage to resume at, and the one terminal disposition."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from db import attempts
from db.models import (
    AttemptRow,
    EvaluationRow,
    ExecutionRow,
    ModelCallRow,
    RewardRow,
    SnapshotRow,
    TreeNodeRow,
)
from gyre.contracts.ids import AttemptId, ExecutionId
from gyre.contracts.lifecycle import (
    EXECUTION,
    AttemptStatus,
    CallStatus,
    Disposition,
    EndReason,
    EvaluationStatus,
    ExecutionStatus,
    advance,
)
from gyre.contracts.messages import AttemptState


@dataclass(frozen=True)
class CallTotals:
    """Totals over the committed calls of an attempt or an execution."""

    num_calls: int
    num_input_tokens: int
    num_output_tokens: int
    num_branches: int


def resume_point(session: Session, execution: ExecutionId, host: str, max_attempts: int) -> AttemptState:
    """Return the newest attempt and its first unfinished stage; open the next attempt if one is due.

    A saved snapshot is always scored before anything runs again.
    """
    row = session.get_one(ExecutionRow, execution, with_for_update={"key_share": True})
    last = attempts.latest(session, execution)
    if row.status == ExecutionStatus.TERMINAL:
        return _state(last, execution, "terminal")
    if last is not None and last.status == AttemptStatus.OPEN:
        return _state(last, execution, "provision")
    if last is not None and last.failure is None:
        snapshot = session.scalars(select(SnapshotRow.id).where(SnapshotRow.attempt_id == last.id)).first()
        if snapshot is None:
            return _state(last, execution, "snapshot")
        number = _next_evaluation(session, execution)
        state = _state(last, execution, "evaluate")
        return state.model_copy(update={"snapshot_id": snapshot, "next_evaluation": number})
    number = last.number + 1 if last else 1
    if last is not None and _num_failed(session, execution) >= max_attempts:
        worked = _any_worked(session, execution)
        return _state(last, execution, "exhausted").model_copy(update={"worked": worked})
    return _state(attempts.open_attempt(session, execution, number, host), execution, "provision")


def _num_failed(session: Session, execution: ExecutionId) -> int:
    """Count the attempts that use up the budget; a cancelled one does not."""
    query = select(func.count()).where(
        AttemptRow.execution_id == execution,
        AttemptRow.failure.is_not(None),
        AttemptRow.end_reason != EndReason.CANCELLED,
    )
    return session.scalar(query) or 0


def _any_worked(session: Session, execution: ExecutionId) -> bool:
    """Return whether any attempt got an answer and ran until its harness ended or its time was up."""
    ended = (EndReason.EXITED, EndReason.TIME_LIMIT)
    called = (
        select(ModelCallRow.id)
        .join(AttemptRow, AttemptRow.id == ModelCallRow.attempt_id)
        .where(
            AttemptRow.execution_id == execution,
            AttemptRow.end_reason.in_(ended),
            ModelCallRow.status == CallStatus.COMMITTED,
        )
    )
    return session.scalars(called.limit(1)).first() is not None


def _state(last: AttemptRow | None, execution: ExecutionId, stage: str) -> AttemptState:
    return AttemptState.model_validate(
        {
            "attempt_id": last.id if last else f"{execution}/attempt/0",
            "number": last.number if last else 0,
            "stage": stage,
            "failure": last.failure if last else None,
        }
    )


def _next_evaluation(session: Session, execution: ExecutionId) -> int:
    """Return the number of the evaluation to run: the newest while it is pending, else the next."""
    query = select(EvaluationRow).where(EvaluationRow.execution_id == execution)
    newest = session.scalars(query.order_by(EvaluationRow.number.desc()).limit(1)).first()
    if newest is None:
        return 1
    return newest.number if newest.status == EvaluationStatus.PENDING else newest.number + 1


def call_totals(session: Session, attempt: AttemptId) -> CallTotals:
    """Add up the committed calls of an attempt and count the leaves of its tree."""
    child = select(TreeNodeRow.parent_id).where(
        TreeNodeRow.attempt_id == attempt, TreeNodeRow.parent_id.is_not(None)
    )
    leaves = session.scalar(
        select(func.count()).where(TreeNodeRow.attempt_id == attempt, TreeNodeRow.id.not_in(child))
    )
    return _totals(session, ModelCallRow.attempt_id == attempt, num_branches=int(leaves or 0))


def execution_totals(session: Session, execution: ExecutionId) -> CallTotals:
    """Add up the committed calls of all attempts of an execution; branches are not counted."""
    return _totals(session, ModelCallRow.execution_id == execution, num_branches=0)


def _totals(session: Session, owned: ColumnElement[bool], *, num_branches: int) -> CallTotals:
    calls, tokens_in, tokens_out = session.execute(
        select(
            func.count(),
            func.coalesce(func.sum(ModelCallRow.num_input_tokens), 0),
            func.coalesce(func.sum(ModelCallRow.num_output_tokens), 0),
        ).where(owned, ModelCallRow.status == CallStatus.COMMITTED)
    ).one()
    return CallTotals(int(calls), int(tokens_in), int(tokens_out), num_branches)


def fold(
    session: Session,
    execution: ExecutionId,
    disposition: Disposition,
    *,
    reward: str | None = None,
    detail: str | None = None,
) -> ExecutionRow:
    """Commit the execution's one disposition, seal its open attempts and return its row.

    The first disposition stands: a repeat or a later, different one changes nothing.
    """
    # FOR NO KEY UPDATE: a call being recorded holds its attempt and waits for this row's key, while the
    # seal below waits for that attempt. FOR UPDATE would deadlock.
    row = session.get_one(ExecutionRow, execution, with_for_update={"key_share": True})
    if row.status == ExecutionStatus.TERMINAL:
        return row
    attempts.seal_all(session, execution, detail or f"its execution has ended as {disposition}")
    row.status = advance(EXECUTION, ExecutionStatus(row.status), ExecutionStatus.TERMINAL)
    row.disposition, row.reward_id, row.detail = disposition, reward, detail
    row.terminal_at = func.now()
    session.flush()
    return row


def reward_value(session: Session, reward: str | None) -> float | None:
    """Return the value of a reward, or None for no reward."""
    return None if reward is None else session.get_one(RewardRow, reward).value


def num_attempts(session: Session, execution: ExecutionId) -> int:
    """Count the execution's attempts."""
    query = select(func.count()).where(AttemptRow.execution_id == execution)
    return session.scalar(query) or 0


def num_evaluations(session: Session, execution: ExecutionId) -> int:
    """Add up the tries of all evaluations of the execution."""
    query = select(func.coalesce(func.sum(EvaluationRow.num_tries), 0))
    return int(session.scalar(query.where(EvaluationRow.execution_id == execution)) or 0)
