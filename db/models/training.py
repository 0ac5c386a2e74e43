"""Tables of trajectories, batches, micro-steps, contributions, checkpoints and versions."""

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
    """The batch of the update that makes ``version``. The update can be redone from its rows."""

    __tablename__ = "batch"
    __table_args__ = (UniqueConstraint("run_id", "version"), one_of("status", BatchStatus))

    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    version: Mapped[int]
    status: Mapped[str] = mapped_column(default=BatchStatus.OPEN)
    num_executions: Mapped[int]
    """M, the number of scored executions in the batch."""
    metrics: Mapped[dict[str, Any] | None]
    opened_at: Mapped[datetime] = created()
    trained_at: Mapped[datetime | None]


class BatchExecutionRow(Base):
    """A scored execution in a batch, with the frozen reward that it trains on."""

    __tablename__ = "batch_execution"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"), primary_key=True)
    execution_id: Mapped[str] = mapped_column(ForeignKey("execution.id"), primary_key=True)
    reward_id: Mapped[str] = mapped_column(ForeignKey("reward.id"))
    """The execution's own reward, except under the permuted control."""
    advantage: Mapped[float]
    num_targets: Mapped[int]
    """|T_i|, the number of target tokens over all its trajectories."""


class TrajectoryRow(Base):
    """One extracted root-to-leaf path. Its targets do not overlap with any other trajectory's."""

    __tablename__ = "trajectory"
    __table_args__ = (UniqueConstraint("execution_id", "index"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    execution_id: Mapped[str] = mapped_column(ForeignKey("execution.id"), index=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"), index=True)
    index: Mapped[int]
    leaf_node_id: Mapped[str] = mapped_column(ForeignKey("tree_node.id"))
    role: Mapped[str]
    num_tokens: Mapped[int]
    """Length of the path in tokens."""
    num_targets: Mapped[int]
    target_node_ids: Mapped[list[Any]]
    """The sampled nodes on the path whose tokens this trajectory trains."""


class MicroStepRow(Base):
    """The unit of work that one cell claims: some of a batch's trajectories, to be scored or trained."""

    __tablename__ = "micro_step"
    __table_args__ = (one_of("status", MicroStepStatus), one_of("kind", MicroStepKind))

    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(default=MicroStepKind.GRAD)
    trajectory_ids: Mapped[list[Any]]
    num_tokens: Mapped[int]
    """Tokens that a target of these trajectories depends on. Shared ones are computed, and counted, once."""
    status: Mapped[str] = mapped_column(default=MicroStepStatus.OPEN)
    claimed_by: Mapped[str | None]
    """``<cell>/<epoch>`` of the claimant."""
    claimed_at: Mapped[datetime | None]
    done_at: Mapped[datetime | None]


class ContributionRow(Base):
    """The gradient that one cell computed for a batch: accepted or void as a whole."""

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
    """SHA-256 of the un-normalised gradient sum, float32 in parameter order."""
    status: Mapped[str] = mapped_column(default=ContributionStatus.SENT)
    created_at: Mapped[datetime] = created()


class CheckpointRow(Base):
    """The stored weights and optimizer state of a version."""

    __tablename__ = "checkpoint"

    id: Mapped[str] = mapped_column(primary_key=True)
    """``run/<run>/checkpoint/<version>``."""
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    version: Mapped[int]
    weights_key: Mapped[str] = mapped_column(ForeignKey("blob.key"))
    """Object with model.safetensors under Hugging Face names."""
    optimizer_key: Mapped[str | None] = mapped_column(ForeignKey("blob.key"))
    sha256: Mapped[str]
    """SHA-256 of the flat weights payload that is published; equal to policy_version.sha256."""
    num_bytes: Mapped[int]
    created_at: Mapped[datetime] = created()


class PolicyVersionRow(Base):
    """A completed policy version. Its update is complete, and readable, once this row is committed."""

    __tablename__ = "policy_version"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str]
    checkpoint_id: Mapped[str] = mapped_column(ForeignKey("checkpoint.id"))
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batch.id"))
    """None for version 0, the model the run started from."""
    created_at: Mapped[datetime] = created()
    published_at: Mapped[datetime | None]
    """When every serving engine had verified the version."""
    published_bytes: Mapped[int | None]
    """Bytes that engines pulled over Mooncake to get it."""
