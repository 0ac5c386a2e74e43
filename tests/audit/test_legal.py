"""Runs that look odd but are legal stay clean: an audit with false alarms is of no use."""

from tests.audit.conftest import Audited
from tests.audit.test_corruption import ATTEMPT, EXCLUDED, OTHER, ROLLOUT, ZEROS, call, node

FREEZE = """
UPDATE batch_execution x SET reward_id = y.id
FROM (VALUES {pairs}) AS p(execution, owner), reward y
WHERE x.execution_id = p.execution AND y.execution_id = p.owner"""
ADVANTAGES = """
UPDATE batch_execution x SET advantage = (r.value - s.mean) / s.std
FROM reward r, (
    SELECT b.batch_id, avg(w.value) AS mean, stddev_pop(w.value) AS std
    FROM batch_execution b JOIN reward w ON w.id = b.reward_id GROUP BY b.batch_id
) s WHERE r.id = x.reward_id AND s.batch_id = x.batch_id"""


def configure(audited: Audited, path: str, value: str) -> None:
    audited.change(f"UPDATE run_config SET resolved = jsonb_set(resolved, '{{{path}}}', '{value}')")


def test_mixed_kv_tokens_are_left_out_of_the_gap_if_the_run_keeps_old_kv(audited: Audited) -> None:
    configure(audited, "cells,publish", '"in_place"')
    audited.change(
        f"UPDATE tree_node SET mixed_kv_tokens = 2, "
        f"logprobs = substr(logprobs, 1, 248) || substr({ZEROS}, 1, 8) WHERE id = {node(1)}",
        "UPDATE model_call c SET output_sha256 = encode(sha256(n.token_ids || n.logprobs), 'hex') "
        "FROM tree_node n WHERE n.id = c.sampled_node_id",
    )
    report = audited.audit()
    assert report.clean, report.violations
    assert report.mixed_kv_tokens == 2
    assert report.tokens == report.calls * 64 - 2


def test_a_permuted_run_trains_on_rewards_of_its_own_batch(audited: Audited) -> None:
    pairs = f"('{ROLLOUT}', '{OTHER}'), ('{OTHER}', '{ROLLOUT}')"
    audited.change(FREEZE.format(pairs=pairs), ADVANTAGES)
    assert not audited.audit(max_tokens=0).checks["rewards_own"]
    configure(audited, "run,control", '"permuted"')
    report = audited.audit(max_tokens=0)
    assert report.clean, report.violations


def test_a_permuted_run_uses_each_reward_once(audited: Audited) -> None:
    configure(audited, "run,control", '"permuted"')
    audited.change(FREEZE.format(pairs=f"('{ROLLOUT}', '{OTHER}')"), ADVANTAGES)
    assert not audited.audit(max_tokens=0).checks["rewards_own"]


def test_a_rescored_execution_keeps_the_reward_it_trained_on(audited: Audited) -> None:
    audited.change(
        f"INSERT INTO evaluation (id, execution_id, snapshot_id, number, status, num_tries) "
        f"VALUES ('e', '{ROLLOUT}', '{ATTEMPT}/snapshot', 2, 'succeeded', 1)",
        f"INSERT INTO reward (id, execution_id, evaluation_id, value) VALUES ('r', '{ROLLOUT}', 'e', 0.9)",
        f"UPDATE execution SET reward_id = 'r' WHERE id = '{ROLLOUT}'",
    )
    report = audited.audit(max_tokens=0)
    assert report.clean, report.violations


def test_placeholders_join_the_baseline_only_if_the_run_says_so(audited: Audited) -> None:
    configure(audited, "loss,placeholder_in_baseline", "true")
    assert not audited.audit(max_tokens=0).checks["advantages_match"]
    audited.change(
        "UPDATE batch_execution x SET advantage = (r.value - 0.5) / sqrt(0.625 / 4) "
        "FROM reward r WHERE r.id = x.reward_id AND x.batch_id = 'run/audited/batch/2'"
    )
    report = audited.audit(max_tokens=0)
    assert report.clean, report.violations


def test_advantages_are_not_divided_if_the_run_says_so(audited: Audited) -> None:
    configure(audited, "loss,normalise_std", "false")
    assert not audited.audit(max_tokens=0).checks["advantages_match"]
    audited.change(ADVANTAGES.replace("/ s.std", ""))
    report = audited.audit(max_tokens=0)
    assert report.clean, report.violations


def test_infrastructure_may_fail_if_the_attempt_is_not_scored(audited: Audited) -> None:
    audited.change(f"UPDATE attempt SET failure = 'sandbox: gone' WHERE execution_id = '{EXCLUDED}'")
    report = audited.audit(max_tokens=0)
    assert report.harness_errors == 1
    assert report.clean, report.violations


def test_a_call_that_ends_with_its_harness_interrupts_nobody(audited: Audited) -> None:
    attempt = f"{EXCLUDED}/attempt/1"
    audited.change(
        f"UPDATE attempt SET end_reason = 'time_limit' WHERE id = '{attempt}'",
        call(3, "status = 'failed', committed_at = NULL").replace(ATTEMPT, attempt),
    )
    report = audited.audit(max_tokens=0)
    assert report.clean, report.violations
    assert (report.executions_interrupted, report.sampled_tokens_discarded) == (0, 0)


def test_a_call_that_outlives_its_attempt_interrupts_nobody(audited: Audited) -> None:
    failure = "failure = 'run/audited/x is sealed: nothing can be recorded for it any more'"
    change = call(3, f"status = 'failed', committed_at = NULL, {failure}")
    audited.change(change.replace(ROLLOUT, EXCLUDED))
    report = audited.audit(max_tokens=0)
    assert report.clean, report.violations
    assert report.executions_interrupted == 0


def test_losing_a_cell_is_not_an_admission_to_training(audited: Audited) -> None:
    audited.change(
        f"UPDATE execution SET terminal_at = '2026-01-01 03:00Z' WHERE id = '{ROLLOUT}'",
        "UPDATE cell_transition SET to_role = 'lost' WHERE from_role = 'rollout' AND command_id = '1/0'",
    )
    assert audited.audit(max_tokens=0).waterlevel_violations == 0


def test_executions_may_be_unfinished_if_other_cells_can_serve_them(audited: Audited) -> None:
    audited.change(
        "INSERT INTO cell (id, run_id, index, role, epoch, capacity) "
        "VALUES ('run/audited/cell/1', 'audited', 1, 'rollout', 1, 2)",
        f"UPDATE execution SET terminal_at = '2026-01-01 03:00Z' WHERE id IN ('{ROLLOUT}', '{OTHER}')",
    )
    assert audited.audit(max_tokens=0).waterlevel_violations == 0
    audited.change("UPDATE cell SET capacity = 1 WHERE index = 1")
    assert audited.audit(max_tokens=0).waterlevel_violations == 1


def test_a_run_in_progress_is_audited_up_to_where_it_is(audited: Audited) -> None:
    audited.change(
        "UPDATE run SET status = 'running'",
        f"UPDATE execution SET status = 'running', disposition = NULL, terminal_at = NULL "
        f"WHERE id = '{EXCLUDED}'",
        "UPDATE query_group SET status = 'running', drop_reason = NULL WHERE id = 'run/audited/group/3'",
        call(3, "status = 'in_flight', committed_at = NULL").replace(ROLLOUT, EXCLUDED),
    )
    report = audited.audit(max_tokens=0)
    assert report.clean, report.violations
    assert report.coverage == 1
