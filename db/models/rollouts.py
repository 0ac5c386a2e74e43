"""Tables of query groups, executions, attempts, and their snapshots, evaluations and rewards."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base, created, one_of
from gyre.contracts.lifecycle import (
    AttemptStatus,
    BlobStatus,
    Disposition,
    EvaluationStatus,
    ExecutionStatus,
    GroupStatus,
    Purpose,
)


class QueryGroupRow(Base):
    """A group of executions of one task, dispatched together."""

    __tablename__ = "query_group"
    __table_args__ = (
        UniqueConstraint("run_id", "index"),
        one_of("status", GroupStatus),
        one_of("purpose", Purpose),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    index: Mapped[int]
    task_id: Mapped[str] = mapped_column(ForeignKey("task.id"))
    purpose: Mapped[str] = mapped_column(default=Purpose.TRAIN)
    phase: Mapped[str | None]
    """``before`` or ``after`` training, for held-out groups."""
    size: Mapped[int]
    status: Mapped[str] = mapped_column(default=GroupStatus.RUNNING)
    drop_reason: Mapped[str | None]
    policy_version: Mapped[int]
    """The newest policy version at dispatch."""
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batch.id"), index=True)
    dispatched_at: Mapped[datetime] = created()
    ready_at: Mapped[datetime | None]


class ExecutionRow(Base):
    """One rollout of a group. It may take several attempts and gets exactly one disposition."""

    __tablename__ = "execution"
    __table_args__ = (
        UniqueConstraint("group_id", "index"),
        one_of("status", ExecutionStatus),
        one_of("disposition", Disposition),
        CheckConstraint("(status = 'terminal') = (disposition IS NOT NULL)", name="terminal_disposed"),
        CheckConstraint(
            "(disposition IS NOT DISTINCT FROM 'scored') = (reward_id IS NOT NULL)", name="scored_rewarded"
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    group_id: Mapped[str] = mapped_column(ForeignKey("query_group.id"), index=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    index: Mapped[int]
    status: Mapped[str] = mapped_column(default=ExecutionStatus.PENDING)
    disposition: Mapped[str | None]
    reward_id: Mapped[str | None] = mapped_column(ForeignKey("reward.id", use_alter=True))
    detail: Mapped[str | None]
    """Why it is a placeholder or excluded: boundary and sentence."""
    started_at: Mapped[datetime | None]
    terminal_at: Mapped[datetime | None]


class AttemptRow(Base):
    """One attempt at an execution. Writers lock the open row FOR SHARE in their own transaction."""

    __tablename__ = "attempt"
    __table_args__ = (UniqueConstraint("execution_id", "number"), one_of("status", AttemptStatus))

    id: Mapped[str] = mapped_column(primary_key=True)
    execution_id: Mapped[str] = mapped_column(ForeignKey("execution.id"), index=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    number: Mapped[int]
    status: Mapped[str] = mapped_column(default=AttemptStatus.OPEN)
    host: Mapped[str]
    end_reason: Mapped[str | None]
    exit_code: Mapped[int | None]
    failure: Mapped[str | None]
    """``boundary: sentence`` if infrastructure ended the attempt."""
    opened_at: Mapped[datetime] = created()
    sealed_at: Mapped[datetime | None]


class BlobRow(Base):
    """An object in S3. Only a confirmed row proves that it exists."""

    __tablename__ = "blob"
    __table_args__ = (one_of("status", BlobStatus),)

    key: Mapped[str] = mapped_column(primary_key=True)
    """``sha256/<hex>`` for content-addressed objects."""
    sha256: Mapped[str]
    num_bytes: Mapped[int]
    status: Mapped[str] = mapped_column(default=BlobStatus.RESERVED)
    reserved_at: Mapped[datetime] = created()
    confirmed_at: Mapped[datetime | None]


class SnapshotRow(Base):
    """The work that a sealed attempt left behind."""

    __tablename__ = "snapshot"

    id: Mapped[str] = mapped_column(primary_key=True)
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempt.id"), unique=True)
    execution_id: Mapped[str] = mapped_column(ForeignKey("execution.id"), index=True)
    blob_key: Mapped[str] = mapped_column(ForeignKey("blob.key"))
    num_files: Mapped[int]
    num_bytes: Mapped[int]
    """Total size of the files, unpacked."""
    manifest: Mapped[dict[str, Any]]
    """Lists of what was captured and what was left out."""
    taken_at: Mapped[datetime] = created()


class EvaluationRow(Base):
    """One evaluation of a snapshot, over one or more tries."""

    __tablename__ = "evaluation"
    __table_args__ = (UniqueConstraint("execution_id", "number"), one_of("status", EvaluationStatus))

    id: Mapped[str] = mapped_column(primary_key=True)
    execution_id: Mapped[str] = mapped_column(ForeignKey("execution.id"), index=True)
    snapshot_id: Mapped[str] = mapped_column(ForeignKey("snapshot.id"))
    number: Mapped[int]
    status: Mapped[str] = mapped_column(default=EvaluationStatus.PENDING)
    num_tries: Mapped[int] = mapped_column(default=0)
    failure: Mapped[str | None]
    output_tail: Mapped[str | None]
    """Last 4 KiB of the evaluator's output."""
    started_at: Mapped[datetime] = created()
    ended_at: Mapped[datetime | None]


class RewardRow(Base):
    """A reward in [0, 1]; never changed once written."""

    __tablename__ = "reward"
    __table_args__ = (CheckConstraint("value >= 0 AND value <= 1", name="value_in_unit"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    execution_id: Mapped[str] = mapped_column(ForeignKey("execution.id"), index=True)
    evaluation_id: Mapped[str | None] = mapped_column(ForeignKey("evaluation.id"), unique=True)
    """None for an execution that ran and left nothing behind, which is scored 0."""
    value: Mapped[float]
    created_at: Mapped[datetime] = created()
