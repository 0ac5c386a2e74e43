"""Evaluations of snapshots and the rewards they produce."""

from sqlalchemy import func, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import EvaluationRow, RewardRow
from gyre.contracts.errors import Fenced
from gyre.contracts.ids import EvaluationId, ExecutionId, SnapshotId, reward_id
from gyre.contracts.lifecycle import EvaluationStatus


def open_evaluation(
    session: Session, evaluation: EvaluationId, *, execution: ExecutionId, snapshot: SnapshotId, number: int
) -> EvaluationRow:
    """Write the evaluation's row and return it; a repeat returns the existing row unchanged."""
    values = {"id": evaluation, "execution_id": execution, "snapshot_id": snapshot, "number": number}
    session.execute(insert(EvaluationRow).values(**values).on_conflict_do_nothing())
    return session.get_one(EvaluationRow, evaluation)


def reward_of(session: Session, evaluation: EvaluationId) -> RewardRow | None:
    """Return the evaluation's reward, or None while it has none."""
    return session.get(RewardRow, reward_id(evaluation))


def succeed(
    session: Session, evaluation: EvaluationId, *, execution: ExecutionId, value: float, try_number: int,
    output_tail: str,
) -> RewardRow:  # fmt: skip
    """Commit the reward of a try and return it. The first one stands: a later try returns it unchanged.

    Raises Fenced if the evaluation has already ended without a reward.
    """
    ended = session.execute(
        update(EvaluationRow)
        .where(EvaluationRow.id == evaluation, EvaluationRow.status == EvaluationStatus.PENDING)
        .values(
            status=EvaluationStatus.SUCCEEDED,
            # Tries may report out of order.
            num_tries=func.greatest(EvaluationRow.num_tries, try_number),
            failure=None,
            output_tail=output_tail,
            ended_at=func.now(),
        )
        .returning(EvaluationRow.id)
    )
    if ended.first() is not None:
        values = {"id": reward_id(evaluation), "execution_id": execution, "evaluation_id": evaluation}
        session.execute(insert(RewardRow).values(**values, value=value))
    reward = reward_of(session, evaluation)
    if reward is None:
        raise Fenced(f"{evaluation} has ended without a reward: a late one does not count")
    return reward


def note_failure(
    session: Session, evaluation: EvaluationId, *, try_number: int, failure: str, output_tail: str | None,
    final: bool,
) -> None:  # fmt: skip
    """Record why a try gave no reward. The evaluation stays pending unless this try was ``final``."""
    values = {
        "num_tries": func.greatest(EvaluationRow.num_tries, try_number),
        "failure": failure,
        "output_tail": output_tail,
    }
    if final:
        values |= {"status": EvaluationStatus.FAILED, "ended_at": func.now()}
    session.execute(
        update(EvaluationRow)
        .where(EvaluationRow.id == evaluation, EvaluationRow.status == EvaluationStatus.PENDING)
        .values(**values)
    )
