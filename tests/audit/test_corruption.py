"""Every number and every check of the audit finds the corruption it exists for."""

from typing import NamedTuple

import pytest

from tests.audit.conftest import Audited

ROLLOUT = "run/audited/group/0/rollout/0"
OTHER = "run/audited/group/0/rollout/1"
EXCLUDED = "run/audited/group/3/rollout/0"
PLACEHOLDER = "run/audited/group/1/rollout/3"
ATTEMPT = f"{ROLLOUT}/attempt/1"
BATCH = "run/audited/batch/1"
ZEROS = "decode(repeat('00', 256), 'hex')"
REHASH = """
UPDATE model_call c SET output_sha256 = encode(sha256(n.token_ids || n.logprobs), 'hex')
FROM tree_node n WHERE n.id = c.sampled_node_id"""


class Corruption(NamedTuple):
    """SQL that damages the small run, and how the audit must report it."""

    name: str
    check: str
    """The check that must fail."""
    numbers: dict[str, float]
    """Expected numbers of the report."""
    statements: tuple[str, ...]


def node(index: int) -> str:
    return f"'{ATTEMPT}/node/{index}'"


def drop(table: str, constraint: str) -> str:
    """Drop a CHECK that would refuse the corruption: the audit must not rely on Postgres for it."""
    return f"ALTER TABLE {table} DROP CONSTRAINT ck_{table}_{constraint}"


def bump(column: str, index: int) -> str:
    return (
        f"UPDATE tree_node SET {column} = set_byte({column}, 0, (get_byte({column}, 0) + 1) % 96) "
        f"WHERE id = {node(index)}"
    )


def call(index: int, change: str) -> str:
    return f"UPDATE model_call SET {change} WHERE id = '{ATTEMPT}/call/{index}'"


def targets(trajectory: int, *indexes: int) -> str:
    names = ", ".join(node(index).replace("'", '"') for index in indexes)
    return (
        f"UPDATE trajectory SET target_node_ids = '[{names}]' WHERE id = '{ROLLOUT}/trajectory/{trajectory}'"
    )


TREES = [
    Corruption(
        "a prompt token", "hashes_match", {"hash_mismatches": 3, "coverage": 1}, (bump("token_ids", 0),)
    ),
    Corruption("a sampled token", "hashes_match", {"hash_mismatches": 1}, (bump("token_ids", 3),)),
    Corruption("a log-probability", "hashes_match", {"hash_mismatches": 1}, (bump("logprobs", 3),)),
    Corruption("an input hash", "hashes_match", {"hash_mismatches": 1}, (call(1, "input_sha256 = 'x'"),)),
    Corruption("context offset", "hashes_match", {"hash_mismatches": 1}, (call(2, "context_offset = 8"),)),
    Corruption(
        "another context",
        "hashes_match",
        {"hash_mismatches": 1},
        (
            f"UPDATE tree_node SET parent_id = {node(0)}, parent_offset = 20, position = 20 "
            f"WHERE id = {node(3)}",
        ),
    ),
    Corruption("input count", "hashes_match", {"hash_mismatches": 1}, (call(2, "num_input_tokens = 1"),)),
    Corruption("output count", "hashes_match", {"hash_mismatches": 1}, (call(2, "num_output_tokens = 1"),)),
    Corruption("no context", "calls_rebuilt", {"coverage": 35 / 36}, (call(3, "context_node_id = NULL"),)),
    Corruption("no hash", "calls_rebuilt", {"coverage": 35 / 36}, (call(3, "output_sha256 = NULL"),)),
    Corruption(
        "a circle",
        "calls_rebuilt",
        {"coverage": 33 / 36},
        (f"UPDATE tree_node SET parent_id = {node(3)}, parent_offset = 1 WHERE id = {node(0)}",),
    ),
    Corruption(
        "a wrong position",
        "calls_rebuilt",
        {"coverage": 35 / 36},
        (f"UPDATE tree_node SET position = 3 WHERE id = {node(4)}",),
    ),
    Corruption(
        "a short node",
        "calls_rebuilt",
        {"coverage": 35 / 36},
        (drop("tree_node", "token_ids_sized"), f"UPDATE tree_node SET token_ids = '' WHERE id = {node(4)}"),
    ),
    Corruption(
        "an answer of a context node",
        "calls_rebuilt",
        {"coverage": 35 / 36},
        (call(3, f"sampled_node_id = {node(4)}"),),
    ),
    Corruption(
        "forged log-probabilities",
        "logprobs_match",
        {"hash_mismatches": 0},
        (f"UPDATE tree_node SET logprobs = {ZEROS} WHERE id = {node(1)}", REHASH),
    ),
    Corruption(
        "another version's tokens",
        "logprobs_match",
        {"hash_mismatches": 0},
        ("UPDATE tree_node SET versions = '[[1, 64]]' WHERE versions = '[[0, 64]]'",),
    ),
    Corruption(
        "another temperature",
        "logprobs_match",
        {"hash_mismatches": 0},
        (call(1, """sampling = '{"temperature": 0.7}'"""),),
    ),
    Corruption(
        "a version without a row",
        "versions_known",
        {},
        (f"UPDATE tree_node SET versions = '[[9, 64]]' WHERE id = {node(1)}",),
    ),
    Corruption(
        "versions of too few tokens",
        "hashes_match",
        {"hash_mismatches": 1},
        (f"UPDATE tree_node SET versions = '[[0, 60]]' WHERE id = {node(1)}",),
    ),
    Corruption(
        "a version list that is missing",
        "hashes_match",
        {"hash_mismatches": 1},
        (f"UPDATE tree_node SET versions = NULL WHERE id = {node(1)}",),
    ),
    Corruption(
        "an id outside the vocabulary",
        "logprobs_match",
        {"hash_mismatches": 0},
        (
            f"UPDATE tree_node SET token_ids = set_byte(token_ids, 1, 1) WHERE id = {node(5)}",
            REHASH,
        ),
    ),
    Corruption(
        "mixed KV",
        "no_mixed_kv",
        {"mixed_kv_tokens": 5, "tokens": 36 * 64 - 5},
        (f"UPDATE tree_node SET mixed_kv_tokens = 5 WHERE id = {node(1)}",),
    ),
]

TARGETS = [
    Corruption("prompt tokens", "targets_sampled", {"targets_not_sampled": 7}, (targets(1, 5, 4),)),
    Corruption("tokens off the path", "targets_sampled", {"targets_not_sampled": 64}, (targets(1, 5, 1),)),
    Corruption(
        "tokens cut off by a branch",
        "targets_sampled",
        {"targets_not_sampled": 14},
        (
            f"UPDATE tree_node SET parent_offset = 50, position = 70 WHERE id = {node(2)}",
            f"UPDATE tree_node SET position = 79 WHERE id = {node(3)}",
        ),
    ),
    Corruption(
        "an unknown node",
        "targets_sampled",
        {"targets_not_sampled": 1},
        (f"UPDATE trajectory SET target_node_ids = '[\"x\"]' WHERE id = '{ROLLOUT}/trajectory/1'",),
    ),
    Corruption(
        "tokens of an uncommitted call",
        "targets_sampled",
        {"targets_not_sampled": 64, "executions_interrupted": 1},
        (call(3, "status = 'failed', committed_at = NULL"),),
    ),
    Corruption("a leaf twice", "targets_once", {"targets_repeated": 64}, (targets(0, 1, 3, 1),)),
    Corruption(
        "a trajectory in two batches",
        "targets_once",
        {"targets_repeated": 128},
        (
            f"INSERT INTO trajectory SELECT id || 'x', execution_id, 'run/audited/batch/2', 7, leaf_node_id, "
            f"role, num_tokens, num_targets, target_node_ids FROM trajectory "
            f"WHERE id = '{ROLLOUT}/trajectory/0'",
        ),
    ),
    Corruption(
        "a trajectory's target count",
        "targets_counted",
        {},
        (f"UPDATE trajectory SET num_targets = 63 WHERE id = '{ROLLOUT}/trajectory/1'",),
    ),
    Corruption(
        "an execution's target count",
        "targets_counted",
        {},
        (f"UPDATE batch_execution SET num_targets = 63 WHERE execution_id = '{ROLLOUT}'",),
    ),
    Corruption(
        "a trajectory's length",
        "targets_counted",
        {},
        (f"UPDATE trajectory SET num_tokens = 63 WHERE id = '{ROLLOUT}/trajectory/1'",),
    ),
]

ACCOUNT = [
    Corruption("M", "batches_complete", {}, (f"UPDATE batch SET num_executions = 5 WHERE id = '{BATCH}'",)),
    Corruption(
        "an execution left out",
        "batches_complete",
        {},
        (f"DELETE FROM batch_execution WHERE execution_id = '{ROLLOUT}'",),
    ),
    Corruption(
        "another's reward",
        "rewards_own",
        {},
        (
            f"UPDATE batch_execution SET reward_id = '{OTHER}/evaluation/1/reward' "
            f"WHERE execution_id = '{ROLLOUT}'",
        ),
    ),
    Corruption(
        "a reward",
        "advantages_match",
        {},
        (f"UPDATE reward SET value = 0.1 WHERE execution_id = '{ROLLOUT}'",),
    ),
    Corruption(
        "an advantage",
        "advantages_match",
        {},
        (f"UPDATE batch_execution SET advantage = advantage + 1e-5 WHERE execution_id = '{ROLLOUT}'",),
    ),
    Corruption(
        "an advantage that is not a number",
        "advantages_match",
        {},
        (f"UPDATE batch_execution SET advantage = 'NaN' WHERE execution_id = '{ROLLOUT}'",),
    ),
    Corruption(
        "a reward above 1",
        "rewards_valid",
        {},
        (
            drop("reward", "value_in_unit"),
            f"UPDATE reward SET value = 1.5 WHERE execution_id = '{OTHER}'",
        ),
    ),
    Corruption(
        "a failed evaluation",
        "rewards_valid",
        {},
        (f"UPDATE evaluation SET status = 'failed' WHERE execution_id = '{ROLLOUT}'",),
    ),
    Corruption(
        "another's evaluation",
        "rewards_valid",
        {},
        (f"UPDATE evaluation SET execution_id = '{EXCLUDED}' WHERE execution_id = '{ROLLOUT}'",),
    ),
    Corruption(
        "a reward out of nothing",
        "rewards_valid",
        {},
        (f"UPDATE reward SET evaluation_id = NULL WHERE execution_id = '{OTHER}'",),
    ),
    Corruption(
        "scored without a reward",
        "rewards_valid",
        {},
        (
            drop("execution", "scored_rewarded"),
            f"UPDATE execution SET reward_id = NULL WHERE id = '{ROLLOUT}'",
        ),
    ),
    Corruption(
        "no disposition",
        "every_execution_disposed",
        {},
        (
            drop("execution", "terminal_disposed"),
            f"UPDATE execution SET disposition = NULL WHERE id = '{EXCLUDED}'",
        ),
    ),
    Corruption(
        "an execution that never ended",
        "every_execution_disposed",
        {},
        (
            f"UPDATE execution SET status = 'running', disposition = NULL, terminal_at = NULL "
            f"WHERE id = '{EXCLUDED}'",
        ),
    ),
    Corruption(
        "a lost execution",
        "every_execution_disposed",
        {},
        (f"DELETE FROM execution WHERE id = '{PLACEHOLDER}'",),
    ),
    Corruption(
        "a group still running",
        "account_balances",
        {},
        ("UPDATE query_group SET status = 'running' WHERE id = 'run/audited/group/2'",),
    ),
    Corruption(
        "a group trained in no batch",
        "account_balances",
        {},
        ("UPDATE query_group SET status = 'trained' WHERE id = 'run/audited/group/2'",),
    ),
    Corruption(
        "a trained group that says ready",
        "account_balances",
        {},
        ("UPDATE query_group SET status = 'ready' WHERE id = 'run/audited/group/0'",),
    ),
    Corruption(
        "a ready group that is not",
        "account_balances",
        {},
        (
            "UPDATE run SET status = 'running'",
            "UPDATE execution SET status = 'running', disposition = NULL, terminal_at = NULL "
            "WHERE id = 'run/audited/group/2/rollout/2'",
        ),
    ),
    Corruption(
        "a group dropped without a reason",
        "account_balances",
        {},
        ("UPDATE query_group SET drop_reason = NULL WHERE id = 'run/audited/group/3'",),
    ),
    Corruption(
        "a held-out group in a batch",
        "account_balances",
        {},
        (f"UPDATE query_group SET batch_id = '{BATCH}' WHERE id = 'run/audited/group/4'",),
    ),
    Corruption(
        "a failure scored",
        "failures_not_scored",
        {"harness_errors": 1},
        (f"UPDATE attempt SET failure = 'sandbox: gone' WHERE id = '{ATTEMPT}'",),
    ),
    Corruption(
        "a failed call",
        "executions_uninterrupted",
        {"executions_interrupted": 1, "sampled_tokens_discarded": 64},
        (call(3, "status = 'failed', committed_at = NULL, failure = 'engine: gone'"),),
    ),
    Corruption(
        "an aborted answer",
        "sampled_tokens_kept",
        {"sampled_tokens_discarded": 64, "executions_interrupted": 0},
        (f"UPDATE tree_node SET finish_reason = 'abort' WHERE id = {node(5)}",),
    ),
]

TRAINING = [
    Corruption(
        "a micro-step lost",
        "gradients_once",
        {"gradients_missing": 4, "gradients_duplicated": 0},
        (f"DELETE FROM micro_step WHERE batch_id = '{BATCH}' AND index = 1",),
    ),
    Corruption(
        "a micro-step not done",
        "gradients_once",
        {"gradients_missing": 4},
        (f"UPDATE micro_step SET status = 'claimed' WHERE batch_id = '{BATCH}' AND index = 1",),
    ),
    Corruption(
        "a micro-step that only scored",
        "gradients_once",
        {"gradients_missing": 4},
        (f"UPDATE micro_step SET kind = 'score' WHERE batch_id = '{BATCH}' AND index = 1",),
    ),
    Corruption(
        "a trajectory in two micro-steps",
        "gradients_once",
        {"gradients_missing": 0, "gradients_duplicated": 1},
        (
            f"UPDATE micro_step SET trajectory_ids = trajectory_ids || '[\"{ROLLOUT}/trajectory/0\"]' "
            f"WHERE batch_id = '{BATCH}' AND index = 2",
        ),
    ),
    Corruption(
        "a trajectory twice in a micro-step",
        "gradients_once",
        {"gradients_duplicated": 1},
        (
            f"UPDATE micro_step SET trajectory_ids = trajectory_ids || '[\"{ROLLOUT}/trajectory/0\"]' "
            f"WHERE batch_id = '{BATCH}' AND index = 1",
        ),
    ),
    Corruption(
        "a contribution void",
        "gradients_once",
        {"gradients_missing": 8},
        (f"UPDATE contribution SET status = 'void' WHERE batch_id = '{BATCH}'",),
    ),
    Corruption(
        "a contribution added twice",
        "gradients_once",
        {"gradients_duplicated": 8},
        (
            "INSERT INTO contribution "
            "(id, batch_id, cell_id, core_epoch, cell_epoch, micro_steps, sha256, status) "
            "SELECT id || 'x', batch_id, cell_id, core_epoch, 99, micro_steps, sha256, status "
            f"FROM contribution WHERE batch_id = '{BATCH}'",
        ),
    ),
    Corruption(
        "a contribution unsettled",
        "contributions_settled",
        {"gradients_missing": 8},
        (f"UPDATE contribution SET status = 'sent' WHERE batch_id = '{BATCH}'",),
    ),
    Corruption(
        "a contribution to nothing",
        "contributions_settled",
        {},
        (f"UPDATE contribution SET micro_steps = '[1, 2, 3]' WHERE batch_id = '{BATCH}'",),
    ),
    Corruption(
        "an execution unfinished at an admission",
        "waterlevel_kept",
        {"waterlevel_violations": 1},
        (f"UPDATE execution SET terminal_at = '2026-01-01 03:00Z' WHERE id = '{ROLLOUT}'",),
    ),
    Corruption(
        "a group dispatched before an admission",
        "waterlevel_kept",
        {"waterlevel_violations": 1},
        ("UPDATE query_group SET dispatched_at = '2026-01-01 01:00Z' WHERE id = 'run/audited/group/1'",),
    ),
    Corruption(
        "weights that are not confirmed",
        "versions_durable",
        {"versions": 2},
        (
            "UPDATE blob SET status = 'reserved' WHERE key = "
            "(SELECT weights_key FROM checkpoint WHERE version = 2)",
        ),
    ),
    Corruption(
        "a version's hash",
        "versions_durable",
        {"versions": 2},
        ("UPDATE policy_version SET sha256 = 'x' WHERE version = 1",),
    ),
    Corruption(
        "a checkpoint's hash",
        "versions_durable",
        {},
        ("UPDATE checkpoint SET sha256 = 'x' WHERE version = 1",),
    ),
    Corruption(
        "another version's weights",
        "versions_durable",
        {"versions": 2},
        (
            "UPDATE checkpoint SET weights_key = (SELECT weights_key FROM checkpoint WHERE version = 2) "
            "WHERE version = 1",
        ),
    ),
    Corruption(
        "the size of an object",
        "versions_durable",
        {},
        ("UPDATE blob SET num_bytes = 1 WHERE key = (SELECT weights_key FROM checkpoint WHERE version = 1)",),
    ),
    Corruption(
        "a version lost",
        "versions_durable",
        {},
        ("DELETE FROM policy_version WHERE version = 2",),
    ),
    Corruption(
        "a version of no batch",
        "versions_durable",
        {},
        ("UPDATE policy_version SET batch_id = NULL WHERE version = 2",),
    ),
    Corruption(
        "a version of an open batch",
        "versions_durable",
        {},
        (f"UPDATE batch SET status = 'open' WHERE id = '{BATCH}'",),
    ),
    Corruption(
        "the size of a snapshot",
        "snapshots_durable",
        {},
        ("UPDATE blob SET num_bytes = 1 WHERE key = (SELECT min(blob_key) FROM snapshot)",),
    ),
]


CASES = [
    *((corruption, True) for corruption in (*TREES, *TRAINING)),
    # These show in the rows alone, so no model has to run.
    *((corruption, False) for corruption in (*TARGETS, *ACCOUNT)),
]


@pytest.mark.parametrize(("corruption", "recompute"), CASES, ids=[corruption.name for corruption, _ in CASES])
def test_corruption_is_found(audited: Audited, corruption: Corruption, recompute: bool) -> None:
    audited.change(*corruption.statements)
    report = audited.audit() if recompute else audited.audit(max_tokens=0)
    assert not report.checks[corruption.check], report.violations
    assert not report.clean
    found = {name: getattr(report, name) for name in corruption.numbers}
    assert found == pytest.approx(corruption.numbers)
