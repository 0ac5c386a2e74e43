"""Whether the row that an id names is there."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from db.models import AttemptRow, EvaluationRow, ModelCallRow, RewardRow, SnapshotRow, TreeNodeRow

BELOW: dict[str, Any] = {
    "attempt": AttemptRow,
    "call": ModelCallRow,
    "node": TreeNodeRow,
    "snapshot": SnapshotRow,
    "evaluation": EvaluationRow,
    "reward": RewardRow,
}
"""Kind of an id below a rollout -> its table."""


def kind_of(name: str) -> str:
    """The last word of an id: ``call`` for ``.../attempt/0/call/3``."""
    return next(part for part in reversed(name.split("/")) if not part.isdecimal())


def exists(session: Session, name: str) -> bool:
    """Whether an id below a rollout names a row. Raises KeyError for an id of another kind."""
    table = BELOW[kind_of(name)]
    return session.scalar(select(table.id).where(table.id == name)) is not None
