"""Model calls and the prefix tree. Token ids and log-probabilities are stored once, at the node
that introduced them, as packed little-endian int32 / float32 arrays."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, LargeBinary, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base, created, one_of
from gyre.contracts.lifecycle import CallStatus, FinishReason, NodeKind


class TreeNodeRow(Base):
    """A run of tokens that follows the first ``parent_offset`` tokens of its parent.

    A branch inside a node is a child with a smaller ``parent_offset``: nodes are never split and
    never change. A root has no parent.
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
    """How many of the parent's tokens are on the path to this node; 0 at a root."""
    position: Mapped[int]
    """Of its first token in the whole sequence."""
    kind: Mapped[str]
    num_tokens: Mapped[int]
    token_ids: Mapped[bytes] = mapped_column(LargeBinary)
    logprobs: Mapped[bytes | None] = mapped_column(LargeBinary)
    versions: Mapped[list[Any] | None]
    """Sampled nodes: ``[[policy_version, num_tokens], ...]`` in order."""
    mixed_kv_tokens: Mapped[int] = mapped_column(default=0)
    finish_reason: Mapped[str | None]
    match_key: Mapped[str | None] = mapped_column(index=True)
    """Sampled nodes: hash of the canonical conversation that ends with this answer."""


class ModelCallRow(Base):
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
    """SHA-256 of the canonical request, ``stream`` flag apart: equal for a retry and for a twin."""
    requested: Mapped[dict[str, Any]]
    """What the harness asked for and the run ignored: temperature, max_tokens, model, stream."""
    sampling: Mapped[dict[str, Any]]
    """What was used: the SamplingParams sent to the engine."""
    lease_owner: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    context_node_id: Mapped[str | None] = mapped_column(ForeignKey("tree_node.id", use_alter=True))
    context_offset: Mapped[int | None]
    """The request's ids are the path to the context node, cut after this many of its tokens."""
    sampled_node_id: Mapped[str | None] = mapped_column(ForeignKey("tree_node.id", use_alter=True))
    num_input_tokens: Mapped[int] = mapped_column(default=0)
    num_reused_tokens: Mapped[int] = mapped_column(default=0)
    """Input tokens taken from the tree; the rest was encoded for this call."""
    num_output_tokens: Mapped[int] = mapped_column(default=0)
    num_cached_tokens: Mapped[int] = mapped_column(default=0)
    """Input tokens whose KV the engine reused."""
    num_malformed_tool_calls: Mapped[int] = mapped_column(default=0)
    finish_reason: Mapped[str | None]
    input_sha256: Mapped[str | None]
    """Of the ids sent to the engine, int32 little-endian."""
    output_sha256: Mapped[str | None]
    """Of the output ids (int32 LE) followed by their log-probabilities (float32 LE)."""
    response: Mapped[dict[str, Any] | None]
    """The canonical answer, replayed to a retry with the same message and tool ids."""
    cell_id: Mapped[str | None]
    failure: Mapped[str | None]
    engine_ms: Mapped[int | None]
    started_at: Mapped[datetime] = created()
    committed_at: Mapped[datetime | None]
    delivered_at: Mapped[datetime | None]
    """When the answer had been written to its client in full."""
