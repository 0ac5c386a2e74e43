"""Declarative base. Its naming convention lets migrations address every constraint by name."""

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import BigInteger, CheckConstraint, DateTime, MetaData, String, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: DateTime(timezone=True),
        str: String(),
        int: BigInteger(),
        # A None is stored as NULL, not as a JSON null, as plain SQL stores it.
        dict[str, Any]: JSONB(none_as_null=True),
        list[Any]: JSONB(none_as_null=True),
    }


def one_of(column: str, enum: type[StrEnum]) -> CheckConstraint:
    """Return a CHECK that the column holds a member of the enum.

    The database's own CHECK, written by a migration, may allow more: Alembic does not compare CHECKs.
    """
    members = ", ".join(f"'{member.value}'" for member in enum)
    return CheckConstraint(f"{column} IN ({members})", name=f"{column}_known")


def created() -> Mapped[datetime]:
    """Return a column that Postgres fills with the time of the insert."""
    return mapped_column(server_default=func.now())
