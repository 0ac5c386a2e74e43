"""Evaluations of snapshots and the rewards that come out of them."""

from sqlalchemy import func, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import Evaluation, Reward
from gyre.contracts.ids import EvaluationId, ExecutionId, RewardId, SnapshotId, reward_id
from gyre.contracts.lifecycle import EvaluationStatus


def open_evaluation(
    session: Session, evaluation: EvaluationId, *, execution: ExecutionId, snapshot: SnapshotId, number: int
) -> Evaluation:
    """Write the evaluation's row (again: returns the row as it is)."""
    values = {"id": evaluation, "execution_id": execution, "snapshot_id": snapshot, "number": number}
    session.execute(insert(Evaluation).values(**values).on_conflict_do_nothing())
    return session.get_one(Evaluation, evaluation)


def reward_of(session: Session, evaluation: EvaluationId) -> Reward | None:
    """The reward that the evaluation came to, if it did."""
    return session.get(Reward, reward_id(evaluation))


def succeed(
    session: Session, evaluation: EvaluationId, *, execution: ExecutionId, value: float, try_number: int,
    output_tail: str,
) -> Reward:  # fmt: skip
    """Commit the reward of a try. The first one stands: a later try returns it unchanged."""
    reward: RewardId = reward_id(evaluation)
    values = {"id": reward, "execution_id": execution, "evaluation_id": evaluation, "value": value}
    session.execute(insert(Reward).values(**values).on_conflict_do_nothing())
    session.execute(
        update(Evaluation)
        .where(Evaluation.id == evaluation, Evaluation.status != EvaluationStatus.SUCCEEDED)
        .values(
            status=EvaluationStatus.SUCCEEDED,
            num_tries=func.greatest(Evaluation.num_tries, try_number),
            failure=None,
            output_tail=output_tail,
            ended_at=func.now(),
        )
    )
    return session.get_one(Reward, reward)


def note_failure(
    session: Session, evaluation: EvaluationId, *, try_number: int, failure: str, output_tail: str | None
) -> None:
    """Record why a try gave no reward. The evaluation stays pending: whether to try again is not ours."""
    session.execute(
        update(Evaluation)
        .where(Evaluation.id == evaluation, Evaluation.status != EvaluationStatus.SUCCEEDED)
        .values(
            num_tries=func.greatest(Evaluation.num_tries, try_number),
            failure=failure,
            output_tail=output_tail,
        )
    )
