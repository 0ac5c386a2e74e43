"""Trajectories, batches, micro-steps, contributions, versions and checkpoints."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base, created, one_of
from gyre.contracts.lifecycle import (
    BatchStatus,
    ContributionStatus,
    MicroStepKind,
    MicroStepStatus,
)


class BatchRow(Base):
    """Everything the update that makes ``version`` needs; it can be redone from its rows."""

    __tablename__ = "batch"
    __table_args__ = (UniqueConstraint("run_id", "version"), one_of("status", BatchStatus))

    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    version: Mapped[int]
    status: Mapped[str] = mapped_column(default=BatchStatus.OPEN)
    num_executions: Mapped[int]
    """M, the scored executions in it."""
    metrics: Mapped[dict[str, Any] | None]
    opened_at: Mapped[datetime] = created()
    trained_at: Mapped[datetime | None]


class BatchExecutionRow(Base):
    """Freezes the reward that each scored execution trains on."""

    __tablename__ = "batch_execution"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"), primary_key=True)
    execution_id: Mapped[str] = mapped_column(ForeignKey("execution.id"), primary_key=True)
    reward_id: Mapped[str] = mapped_column(ForeignKey("reward.id"))
    """The execution's own, but for the permuted control."""
    advantage: Mapped[float]
    num_targets: Mapped[int]
    """|T_i|, over all its trajectories."""


class TrajectoryRow(Base):
    """One extracted root-to-leaf path; its targets overlap with no other trajectory's."""

    __tablename__ = "trajectory"
    __table_args__ = (UniqueConstraint("execution_id", "index"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    execution_id: Mapped[str] = mapped_column(ForeignKey("execution.id"), index=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"), index=True)
    index: Mapped[int]
    leaf_node_id: Mapped[str] = mapped_column(ForeignKey("tree_node.id"))
    role: Mapped[str]
    num_tokens: Mapped[int]
    """Length of the path."""
    num_targets: Mapped[int]
    target_node_ids: Mapped[list[Any]]
    """Sampled nodes on the path whose tokens are targets here."""


class MicroStepRow(Base):
    __tablename__ = "micro_step"
    __table_args__ = (one_of("status", MicroStepStatus), one_of("kind", MicroStepKind))

    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(default=MicroStepKind.GRAD)
    trajectory_ids: Mapped[list[Any]]
    num_tokens: Mapped[int]
    """Tokens before some target of these trajectories; what they share is computed, and counted, once."""
    status: Mapped[str] = mapped_column(default=MicroStepStatus.OPEN)
    claimed_by: Mapped[str | None]
    """``<cell>/<epoch>`` of the cell that works on it."""
    claimed_at: Mapped[datetime | None]
    done_at: Mapped[datetime | None]


class ContributionRow(Base):
    """What one cell claimed and computed in a batch: accepted or void as a whole."""

    __tablename__ = "contribution"
    __table_args__ = (
        UniqueConstraint("batch_id", "cell_id", "core_epoch", "cell_epoch"),
        one_of("status", ContributionStatus),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"), index=True)
    cell_id: Mapped[str] = mapped_column(ForeignKey("cell.id"))
    core_epoch: Mapped[int]
    cell_epoch: Mapped[int]
    micro_steps: Mapped[list[Any]]
    sha256: Mapped[str]
    """Of the un-normalised gradient sum, float32 in parameter order."""
    status: Mapped[str] = mapped_column(default=ContributionStatus.SENT)
    created_at: Mapped[datetime] = created()


class CheckpointRow(Base):
    __tablename__ = "checkpoint"

    id: Mapped[str] = mapped_column(primary_key=True)
    """``run/<run>/checkpoint/<version>``."""
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    version: Mapped[int]
    weights_key: Mapped[str] = mapped_column(ForeignKey("blob.key"))
    """model.safetensors in Hugging Face names."""
    optimizer_key: Mapped[str | None] = mapped_column(ForeignKey("blob.key"))
    sha256: Mapped[str]
    """Of the flat weights payload that is published; equal to policy_version.sha256."""
    num_bytes: Mapped[int]
    created_at: Mapped[datetime] = created()


class PolicyVersionRow(Base):
    """An update is completed when this row is committed; only then may anyone read the version."""

    __tablename__ = "policy_version"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str]
    checkpoint_id: Mapped[str] = mapped_column(ForeignKey("checkpoint.id"))
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batch.id"))
    """None for version 0, the model the run started from."""
    created_at: Mapped[datetime] = created()
    published_at: Mapped[datetime | None]
    """When every serving engine had verified it."""
    published_bytes: Mapped[int | None]
    """Bytes that engines pulled over Mooncake for it."""
