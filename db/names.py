"""Check that an id below a rollout exists."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from db.models import AttemptRow, EvaluationRow, ModelCallRow, RewardRow, SnapshotRow, TreeNodeRow

TABLES: dict[str, Any] = {
    "attempt": AttemptRow,
    "call": ModelCallRow,
    "node": TreeNodeRow,
    "snapshot": SnapshotRow,
    "evaluation": EvaluationRow,
    "reward": RewardRow,
}
"""Table of each kind of id below a rollout."""


def kind_of(name: str) -> str:
    """Return the kind of an id: ``call`` for ``.../attempt/0/call/3``."""
    return next(part for part in reversed(name.split("/")) if not part.isdecimal())


def exists(session: Session, name: str) -> bool:
    """Return whether an id below a rollout names a row. Raises KeyError for an id of another kind."""
    table = TABLES[kind_of(name)]
    return session.scalar(select(table.id).where(table.id == name)) is not None
