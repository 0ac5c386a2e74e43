"""Tables of model calls and the prefix tree.

Token ids and log-probabilities are stored once, at the node that introduced them, as packed little-endian
int32 and float32 arrays.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, LargeBinary, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base, created, one_of
from gyre.contracts.lifecycle import CallStatus, FinishReason, NodeKind


class TreeNodeRow(Base):
    """A sequence of tokens that follows the first ``parent_offset`` tokens of its parent.

    A branch inside a node is a child with a smaller ``parent_offset``, so nodes are never split and never
    change. A root has no parent.
    """

    __tablename__ = "tree_node"
    __table_args__ = (
        UniqueConstraint("attempt_id", "index"),
        one_of("kind", NodeKind),
        CheckConstraint("(kind = 'sampled') = (logprobs IS NOT NULL)", name="sampled_scored"),
        CheckConstraint("octet_length(token_ids) = 4 * num_tokens", name="token_ids_sized"),
        CheckConstraint("octet_length(logprobs) = 4 * num_tokens", name="logprobs_sized"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempt.id"), index=True)
    index: Mapped[int]
    call_id: Mapped[str] = mapped_column(ForeignKey("model_call.id"))
    """The call that introduced it."""
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("tree_node.id"))
    parent_offset: Mapped[int]
    """Number of the parent's tokens on the path to this node; 0 at a root."""
    position: Mapped[int]
    """Position of its first token in the whole sequence."""
    kind: Mapped[str]
    num_tokens: Mapped[int]
    token_ids: Mapped[bytes] = mapped_column(LargeBinary)
    logprobs: Mapped[bytes | None] = mapped_column(LargeBinary)
    versions: Mapped[list[Any] | None]
    """``[[policy_version, num_tokens], ...]`` in order; None at context nodes."""
    mixed_kv_tokens: Mapped[int] = mapped_column(default=0)
    finish_reason: Mapped[str | None]
    match_key: Mapped[str | None] = mapped_column(index=True)
    """Hash of the canonical conversation that ends with this answer; None at context nodes."""


class ModelCallRow(Base):
    """A model call of a harness: the request, its lease while in flight, and the answer."""

    __tablename__ = "model_call"
    __table_args__ = (
        UniqueConstraint("attempt_id", "index"),
        one_of("status", CallStatus),
        one_of("finish_reason", FinishReason),
        CheckConstraint("(status = 'committed') = (committed_at IS NOT NULL)", name="committed_timed"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempt.id"), index=True)
    execution_id: Mapped[str] = mapped_column(ForeignKey("execution.id"), index=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), index=True)
    index: Mapped[int]
    status: Mapped[str] = mapped_column(default=CallStatus.IN_FLIGHT)
    dialect: Mapped[str]
    role: Mapped[str] = mapped_column(default="main")
    request_key: Mapped[str] = mapped_column(index=True)
    """SHA-256 of the canonical request without its ``stream`` flag: equal for retries and siblings."""
    requested: Mapped[dict[str, Any]]
    """Settings that the harness asked for and the run ignored: temperature, max_tokens, model, stream."""
    sampling: Mapped[dict[str, Any]]
    """SamplingParams that were sent to the engine."""
    lease_owner: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    context_node_id: Mapped[str | None] = mapped_column(ForeignKey("tree_node.id", use_alter=True))
    context_offset: Mapped[int | None]
    """Number of the context node's tokens in the input. The input ids are the path to it, cut there."""
    sampled_node_id: Mapped[str | None] = mapped_column(ForeignKey("tree_node.id", use_alter=True))
    num_input_tokens: Mapped[int] = mapped_column(default=0)
    num_reused_tokens: Mapped[int] = mapped_column(default=0)
    """Input tokens taken from the tree; the others were encoded for this call."""
    num_output_tokens: Mapped[int] = mapped_column(default=0)
    num_cached_tokens: Mapped[int] = mapped_column(default=0)
    """Input tokens whose KV the engine reused."""
    num_malformed_tool_calls: Mapped[int] = mapped_column(default=0)
    finish_reason: Mapped[str | None]
    input_sha256: Mapped[str | None]
    """SHA-256 of the ids sent to the engine, int32 little-endian."""
    output_sha256: Mapped[str | None]
    """SHA-256 of the output ids (int32 LE) followed by their log-probabilities (float32 LE)."""
    response: Mapped[dict[str, Any] | None]
    """The canonical answer. A retry gets it again, with the same message and tool ids."""
    cell_id: Mapped[str | None]
    failure: Mapped[str | None]
    engine_ms: Mapped[int | None]
    started_at: Mapped[datetime] = created()
    committed_at: Mapped[datetime | None]
    delivered_at: Mapped[datetime | None]
    """When the whole answer had been written to its client."""
