"""Create the initial tables."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "blob",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column(
            "reserved_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("confirmed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("status IN ('reserved', 'confirmed')", name=op.f("ck_blob_status_known")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_blob")),
    )
    op.create_table(
        "lease",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_lease")),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("failure", sa.String(), nullable=True),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status IN ('created', 'running', 'paused', 'finished', 'failed', 'stopped')",
            name=op.f("ck_run_status_known"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
    )
    op.create_table(
        "batch",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("num_executions", sa.BigInteger(), nullable=False),
        sa.Column("metrics", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "opened_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("trained_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("status IN ('open', 'trained')", name=op.f("ck_batch_status_known")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_batch_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batch")),
        sa.UniqueConstraint("run_id", "version", name=op.f("uq_batch_run_id_version")),
    )
    op.create_index(op.f("ix_batch_run_id"), "batch", ["run_id"], unique=False)
    op.create_table(
        "cell",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("capacity", sa.BigInteger(), nullable=False),
        sa.Column("engine_url", sa.String(), nullable=True),
        sa.Column("engine_version", sa.BigInteger(), nullable=True),
        sa.Column("host", sa.String(), nullable=True),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "role IN ('rollout', 'draining', 'loading', 'training', 'returning', 'lost')",
            name=op.f("ck_cell_role_known"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_cell_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cell")),
    )
    op.create_index(op.f("ix_cell_run_id"), "cell", ["run_id"], unique=False)
    op.create_table(
        "checkpoint",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("weights_key", sa.String(), nullable=False),
        sa.Column("optimizer_key", sa.String(), nullable=True),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["optimizer_key"], ["blob.key"], name=op.f("fk_checkpoint_optimizer_key")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_checkpoint_run_id")),
        sa.ForeignKeyConstraint(["weights_key"], ["blob.key"], name=op.f("fk_checkpoint_weights_key")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoint")),
    )
    op.create_index(op.f("ix_checkpoint_run_id"), "checkpoint", ["run_id"], unique=False)
    op.create_table(
        "run_config",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("resolved", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_run_config_run_id")),
        sa.PrimaryKeyConstraint("run_id", "revision", name=op.f("pk_run_config")),
    )
    op.create_table(
        "task",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("split", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_task_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_task")),
    )
    op.create_index(op.f("ix_task_run_id"), "task", ["run_id"], unique=False)
    op.create_table(
        "wait",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("waits_for", sa.String(), nullable=False),
        sa.Column("expected_s", sa.Double(), nullable=False),
        sa.Column(
            "since",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_wait_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_wait")),
    )
    op.create_index(op.f("ix_wait_run_id"), "wait", ["run_id"], unique=False)
    op.create_table(
        "cell_transition",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("cell_id", sa.String(), nullable=False),
        sa.Column("command_id", sa.String(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("from_role", sa.String(), nullable=False),
        sa.Column("to_role", sa.String(), nullable=False),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "to_role IN ('rollout', 'draining', 'loading', 'training', 'returning', 'lost')",
            name=op.f("ck_cell_transition_to_role_known"),
        ),
        sa.ForeignKeyConstraint(["cell_id"], ["cell.id"], name=op.f("fk_cell_transition_cell_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cell_transition")),
        sa.UniqueConstraint("command_id", name=op.f("uq_cell_transition_command_id")),
    )
    op.create_index(op.f("ix_cell_transition_cell_id"), "cell_transition", ["cell_id"], unique=False)
    op.create_table(
        "contribution",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column("cell_id", sa.String(), nullable=False),
        sa.Column("core_epoch", sa.BigInteger(), nullable=False),
        sa.Column("cell_epoch", sa.BigInteger(), nullable=False),
        sa.Column("micro_steps", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "status IN ('sent', 'accepted', 'void')",
            name=op.f("ck_contribution_status_known"),
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("fk_contribution_batch_id")),
        sa.ForeignKeyConstraint(["cell_id"], ["cell.id"], name=op.f("fk_contribution_cell_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_contribution")),
        sa.UniqueConstraint(
            "batch_id",
            "cell_id",
            "core_epoch",
            "cell_epoch",
            name=op.f("uq_contribution_batch_id_cell_id_core_epoch_cell_epoch"),
        ),
    )
    op.create_index(op.f("ix_contribution_batch_id"), "contribution", ["batch_id"], unique=False)
    op.create_table(
        "micro_step",
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("trajectory_ids", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("num_tokens", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("claimed_by", sa.String(), nullable=True),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("kind IN ('score', 'grad')", name=op.f("ck_micro_step_kind_known")),
        sa.CheckConstraint(
            "status IN ('open', 'claimed', 'done')",
            name=op.f("ck_micro_step_status_known"),
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("fk_micro_step_batch_id")),
        sa.PrimaryKeyConstraint("batch_id", "index", name=op.f("pk_micro_step")),
    )
    op.create_table(
        "policy_version",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("checkpoint_id", sa.String(), nullable=False),
        sa.Column("batch_id", sa.String(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("published_bytes", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("fk_policy_version_batch_id")),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"],
            ["checkpoint.id"],
            name=op.f("fk_policy_version_checkpoint_id"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_policy_version_run_id")),
        sa.PrimaryKeyConstraint("run_id", "version", name=op.f("pk_policy_version")),
    )
    op.create_table(
        "query_group",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("phase", sa.String(), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("drop_reason", sa.String(), nullable=True),
        sa.Column("policy_version", sa.BigInteger(), nullable=False),
        sa.Column("batch_id", sa.String(), nullable=True),
        sa.Column(
            "dispatched_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("ready_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "purpose IN ('train', 'heldout', 'greedy')",
            name=op.f("ck_query_group_purpose_known"),
        ),
        sa.CheckConstraint(
            "status IN ('running', 'ready', 'assigned', 'trained', 'dropped')",
            name=op.f("ck_query_group_status_known"),
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("fk_query_group_batch_id")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_query_group_run_id")),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"], name=op.f("fk_query_group_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_query_group")),
        sa.UniqueConstraint("run_id", "index", name=op.f("uq_query_group_run_id_index")),
    )
    op.create_index(op.f("ix_query_group_batch_id"), "query_group", ["batch_id"], unique=False)
    op.create_index(op.f("ix_query_group_run_id"), "query_group", ["run_id"], unique=False)
    op.create_table(
        "execution",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("group_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("disposition", sa.String(), nullable=True),
        sa.Column("reward_id", sa.String(), nullable=True),
        sa.Column("detail", sa.String(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("terminal_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(disposition IS NOT DISTINCT FROM 'scored') = (reward_id IS NOT NULL)",
            name=op.f("ck_execution_scored_rewarded"),
        ),
        sa.CheckConstraint(
            "(status = 'terminal') = (disposition IS NOT NULL)",
            name=op.f("ck_execution_terminal_disposed"),
        ),
        sa.CheckConstraint(
            "disposition IN ('scored', 'placeholder', 'excluded')",
            name=op.f("ck_execution_disposition_known"),
        ),
        sa.CheckConstraint(
            "status IN ('pending', 'running', 'terminal')",
            name=op.f("ck_execution_status_known"),
        ),
        sa.ForeignKeyConstraint(["group_id"], ["query_group.id"], name=op.f("fk_execution_group_id")),
        sa.ForeignKeyConstraint(
            ["reward_id"],
            ["reward.id"],
            name=op.f("fk_execution_reward_id"),
            use_alter=True,
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_execution_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_execution")),
        sa.UniqueConstraint("group_id", "index", name=op.f("uq_execution_group_id_index")),
    )
    op.create_index(op.f("ix_execution_group_id"), "execution", ["group_id"], unique=False)
    op.create_index(op.f("ix_execution_run_id"), "execution", ["run_id"], unique=False)
    op.create_table(
        "attempt",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("end_reason", sa.String(), nullable=True),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("failure", sa.String(), nullable=True),
        sa.Column(
            "opened_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("sealed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("status IN ('open', 'sealed')", name=op.f("ck_attempt_status_known")),
        sa.ForeignKeyConstraint(["execution_id"], ["execution.id"], name=op.f("fk_attempt_execution_id")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_attempt_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempt")),
        sa.UniqueConstraint("execution_id", "number", name=op.f("uq_attempt_execution_id_number")),
    )
    op.create_index(op.f("ix_attempt_execution_id"), "attempt", ["execution_id"], unique=False)
    op.create_index(op.f("ix_attempt_run_id"), "attempt", ["run_id"], unique=False)
    op.create_table(
        "model_call",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("dialect", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("request_key", sa.String(), nullable=False),
        sa.Column("requested", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("sampling", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("lease_owner", sa.String(), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("context_node_id", sa.String(), nullable=True),
        sa.Column("context_offset", sa.BigInteger(), nullable=True),
        sa.Column("sampled_node_id", sa.String(), nullable=True),
        sa.Column("num_input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_reused_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_malformed_tool_calls", sa.BigInteger(), nullable=False),
        sa.Column("finish_reason", sa.String(), nullable=True),
        sa.Column("input_sha256", sa.String(), nullable=True),
        sa.Column("output_sha256", sa.String(), nullable=True),
        sa.Column("response", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("cell_id", sa.String(), nullable=True),
        sa.Column("failure", sa.String(), nullable=True),
        sa.Column("engine_ms", sa.BigInteger(), nullable=True),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("committed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(status = 'committed') = (committed_at IS NOT NULL)",
            name=op.f("ck_model_call_committed_timed"),
        ),
        sa.CheckConstraint(
            "finish_reason IN ('stop', 'length', 'abort')",
            name=op.f("ck_model_call_finish_reason_known"),
        ),
        sa.CheckConstraint(
            "status IN ('in_flight', 'committed', 'failed')",
            name=op.f("ck_model_call_status_known"),
        ),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name=op.f("fk_model_call_attempt_id")),
        sa.ForeignKeyConstraint(
            ["context_node_id"],
            ["tree_node.id"],
            name=op.f("fk_model_call_context_node_id"),
            use_alter=True,
        ),
        sa.ForeignKeyConstraint(["execution_id"], ["execution.id"], name=op.f("fk_model_call_execution_id")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_model_call_run_id")),
        sa.ForeignKeyConstraint(
            ["sampled_node_id"],
            ["tree_node.id"],
            name=op.f("fk_model_call_sampled_node_id"),
            use_alter=True,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_call")),
        sa.UniqueConstraint("attempt_id", "index", name=op.f("uq_model_call_attempt_id_index")),
    )
    op.create_index(op.f("ix_model_call_attempt_id"), "model_call", ["attempt_id"], unique=False)
    op.create_index(op.f("ix_model_call_execution_id"), "model_call", ["execution_id"], unique=False)
    op.create_index(op.f("ix_model_call_request_key"), "model_call", ["request_key"], unique=False)
    op.create_index(op.f("ix_model_call_run_id"), "model_call", ["run_id"], unique=False)
    op.create_table(
        "snapshot",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("blob_key", sa.String(), nullable=False),
        sa.Column("num_files", sa.BigInteger(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("manifest", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "taken_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name=op.f("fk_snapshot_attempt_id")),
        sa.ForeignKeyConstraint(["blob_key"], ["blob.key"], name=op.f("fk_snapshot_blob_key")),
        sa.ForeignKeyConstraint(["execution_id"], ["execution.id"], name=op.f("fk_snapshot_execution_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_snapshot")),
        sa.UniqueConstraint("attempt_id", name=op.f("uq_snapshot_attempt_id")),
    )
    op.create_index(op.f("ix_snapshot_execution_id"), "snapshot", ["execution_id"], unique=False)
    op.create_table(
        "evaluation",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("snapshot_id", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("num_tries", sa.BigInteger(), nullable=False),
        sa.Column("failure", sa.String(), nullable=True),
        sa.Column("output_tail", sa.String(), nullable=True),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status IN ('pending', 'succeeded', 'failed')",
            name=op.f("ck_evaluation_status_known"),
        ),
        sa.ForeignKeyConstraint(["execution_id"], ["execution.id"], name=op.f("fk_evaluation_execution_id")),
        sa.ForeignKeyConstraint(["snapshot_id"], ["snapshot.id"], name=op.f("fk_evaluation_snapshot_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluation")),
        sa.UniqueConstraint("execution_id", "number", name=op.f("uq_evaluation_execution_id_number")),
    )
    op.create_index(op.f("ix_evaluation_execution_id"), "evaluation", ["execution_id"], unique=False)
    op.create_table(
        "tree_node",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column("call_id", sa.String(), nullable=False),
        sa.Column("parent_id", sa.String(), nullable=True),
        sa.Column("parent_offset", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("num_tokens", sa.BigInteger(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=True),
        sa.Column("versions", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("mixed_kv_tokens", sa.BigInteger(), nullable=False),
        sa.Column("finish_reason", sa.String(), nullable=True),
        sa.Column("match_key", sa.String(), nullable=True),
        sa.CheckConstraint(
            "(kind = 'sampled') = (logprobs IS NOT NULL)",
            name=op.f("ck_tree_node_sampled_scored"),
        ),
        sa.CheckConstraint("kind IN ('context', 'sampled')", name=op.f("ck_tree_node_kind_known")),
        sa.CheckConstraint(
            "octet_length(logprobs) = 4 * num_tokens",
            name=op.f("ck_tree_node_logprobs_sized"),
        ),
        sa.CheckConstraint(
            "octet_length(token_ids) = 4 * num_tokens",
            name=op.f("ck_tree_node_token_ids_sized"),
        ),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name=op.f("fk_tree_node_attempt_id")),
        sa.ForeignKeyConstraint(["call_id"], ["model_call.id"], name=op.f("fk_tree_node_call_id")),
        sa.ForeignKeyConstraint(["parent_id"], ["tree_node.id"], name=op.f("fk_tree_node_parent_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tree_node")),
        sa.UniqueConstraint("attempt_id", "index", name=op.f("uq_tree_node_attempt_id_index")),
    )
    op.create_index(op.f("ix_tree_node_attempt_id"), "tree_node", ["attempt_id"], unique=False)
    op.create_index(op.f("ix_tree_node_match_key"), "tree_node", ["match_key"], unique=False)
    op.create_table(
        "reward",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("evaluation_id", sa.String(), nullable=True),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint("value >= 0 AND value <= 1", name=op.f("ck_reward_value_in_unit")),
        sa.ForeignKeyConstraint(["evaluation_id"], ["evaluation.id"], name=op.f("fk_reward_evaluation_id")),
        sa.ForeignKeyConstraint(["execution_id"], ["execution.id"], name=op.f("fk_reward_execution_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reward")),
        sa.UniqueConstraint("evaluation_id", name=op.f("uq_reward_evaluation_id")),
    )
    op.create_index(op.f("ix_reward_execution_id"), "reward", ["execution_id"], unique=False)
    op.create_table(
        "trajectory",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column("leaf_node_id", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("num_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_targets", sa.BigInteger(), nullable=False),
        sa.Column("target_node_ids", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("fk_trajectory_batch_id")),
        sa.ForeignKeyConstraint(["execution_id"], ["execution.id"], name=op.f("fk_trajectory_execution_id")),
        sa.ForeignKeyConstraint(["leaf_node_id"], ["tree_node.id"], name=op.f("fk_trajectory_leaf_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trajectory")),
        sa.UniqueConstraint("execution_id", "index", name=op.f("uq_trajectory_execution_id_index")),
    )
    op.create_index(op.f("ix_trajectory_batch_id"), "trajectory", ["batch_id"], unique=False)
    op.create_index(op.f("ix_trajectory_execution_id"), "trajectory", ["execution_id"], unique=False)
    op.create_table(
        "batch_execution",
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column("execution_id", sa.String(), nullable=False),
        sa.Column("reward_id", sa.String(), nullable=False),
        sa.Column("advantage", sa.Double(), nullable=False),
        sa.Column("num_targets", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("fk_batch_execution_batch_id")),
        sa.ForeignKeyConstraint(
            ["execution_id"],
            ["execution.id"],
            name=op.f("fk_batch_execution_execution_id"),
        ),
        sa.ForeignKeyConstraint(["reward_id"], ["reward.id"], name=op.f("fk_batch_execution_reward_id")),
        sa.PrimaryKeyConstraint("batch_id", "execution_id", name=op.f("pk_batch_execution")),
    )

    # These foreign keys close cycles between tables, so both sides must exist first.
    op.create_foreign_key("fk_execution_reward_id", "execution", "reward", ["reward_id"], ["id"])
    op.create_foreign_key(
        "fk_model_call_context_node_id",
        "model_call",
        "tree_node",
        ["context_node_id"],
        ["id"],
    )
    op.create_foreign_key(
        "fk_model_call_sampled_node_id",
        "model_call",
        "tree_node",
        ["sampled_node_id"],
        ["id"],
    )


def downgrade() -> None:
    op.drop_constraint("fk_execution_reward_id", "execution", type_="foreignkey")
    op.drop_constraint("fk_model_call_context_node_id", "model_call", type_="foreignkey")
    op.drop_constraint("fk_model_call_sampled_node_id", "model_call", type_="foreignkey")
    op.drop_table("batch_execution")
    op.drop_index(op.f("ix_trajectory_execution_id"), table_name="trajectory")
    op.drop_index(op.f("ix_trajectory_batch_id"), table_name="trajectory")
    op.drop_table("trajectory")
    op.drop_index(op.f("ix_reward_execution_id"), table_name="reward")
    op.drop_table("reward")
    op.drop_index(op.f("ix_tree_node_match_key"), table_name="tree_node")
    op.drop_index(op.f("ix_tree_node_attempt_id"), table_name="tree_node")
    op.drop_table("tree_node")
    op.drop_index(op.f("ix_evaluation_execution_id"), table_name="evaluation")
    op.drop_table("evaluation")
    op.drop_index(op.f("ix_snapshot_execution_id"), table_name="snapshot")
    op.drop_table("snapshot")
    op.drop_index(op.f("ix_model_call_run_id"), table_name="model_call")
    op.drop_index(op.f("ix_model_call_request_key"), table_name="model_call")
    op.drop_index(op.f("ix_model_call_execution_id"), table_name="model_call")
    op.drop_index(op.f("ix_model_call_attempt_id"), table_name="model_call")
    op.drop_table("model_call")
    op.drop_index(op.f("ix_attempt_run_id"), table_name="attempt")
    op.drop_index(op.f("ix_attempt_execution_id"), table_name="attempt")
    op.drop_table("attempt")
    op.drop_index(op.f("ix_execution_run_id"), table_name="execution")
    op.drop_index(op.f("ix_execution_group_id"), table_name="execution")
    op.drop_table("execution")
    op.drop_index(op.f("ix_query_group_run_id"), table_name="query_group")
    op.drop_index(op.f("ix_query_group_batch_id"), table_name="query_group")
    op.drop_table("query_group")
    op.drop_table("policy_version")
    op.drop_table("micro_step")
    op.drop_index(op.f("ix_contribution_batch_id"), table_name="contribution")
    op.drop_table("contribution")
    op.drop_index(op.f("ix_cell_transition_cell_id"), table_name="cell_transition")
    op.drop_table("cell_transition")
    op.drop_index(op.f("ix_wait_run_id"), table_name="wait")
    op.drop_table("wait")
    op.drop_index(op.f("ix_task_run_id"), table_name="task")
    op.drop_table("task")
    op.drop_table("run_config")
    op.drop_index(op.f("ix_checkpoint_run_id"), table_name="checkpoint")
    op.drop_table("checkpoint")
    op.drop_index(op.f("ix_cell_run_id"), table_name="cell")
    op.drop_table("cell")
    op.drop_index(op.f("ix_batch_run_id"), table_name="batch")
    op.drop_table("batch")
    op.drop_table("run")
    op.drop_table("lease")
    op.drop_table("blob")
