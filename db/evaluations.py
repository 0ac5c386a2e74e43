"""Evaluations of snapshots and the rewards that come of them."""

from sqlalchemy import func, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import Evaluation, Reward
from gyre.contracts.ids import EvaluationId, reward_id
from gyre.contracts.lifecycle import EvaluationStatus


def begin_try(
    session: Session, *, evaluation: str, execution: str, snapshot: str, number: int, try_number: int
) -> str | None:
    """Open the evaluation and count this try. Returns the reward's id if it is there already."""
    values = {"id": evaluation, "execution_id": execution, "snapshot_id": snapshot, "number": number}
    session.execute(insert(Evaluation).values(**values).on_conflict_do_nothing())
    row = session.get_one(Evaluation, evaluation, with_for_update=True)
    row.num_tries = max(row.num_tries, try_number)
    return reward_id(EvaluationId(evaluation)) if row.status == EvaluationStatus.SUCCEEDED else None


def succeed(session: Session, evaluation: str, value: float, output_tail: str) -> str:
    """Commit the reward, once; a repeat returns the first one's id."""
    name = reward_id(EvaluationId(evaluation))
    execution = session.get_one(Evaluation, evaluation, with_for_update=True).execution_id
    values = {"id": name, "execution_id": execution, "evaluation_id": evaluation, "value": value}
    session.execute(insert(Reward).values(**values).on_conflict_do_nothing())
    _end(session, evaluation, EvaluationStatus.SUCCEEDED, None, output_tail)
    return name


def fail_try(session: Session, evaluation: str, failure: str, output_tail: str, *, final: bool) -> None:
    """Note why a try gave no valid reward; the evaluation stays pending unless it was the last."""
    status = EvaluationStatus.FAILED if final else EvaluationStatus.PENDING
    _end(session, evaluation, status, failure, output_tail)


def _end(session: Session, evaluation: str, status: EvaluationStatus, failure: str | None, tail: str) -> None:
    ended = None if status is EvaluationStatus.PENDING else func.now()
    session.execute(
        update(Evaluation)
        .where(Evaluation.id == evaluation, Evaluation.status == EvaluationStatus.PENDING)
        .values(status=status, failure=failure, output_tail=tail[-4096:], ended_at=ended)
    )
