"""Audit dispositions, the account of groups, and failures along the way."""

from collections import defaultdict
from typing import NamedTuple

from app.audit.findings import Findings
from db.audit import AuditExecution, AuditGroup, AuditReward, RunRows
from gyre.contracts.lifecycle import (
    BatchStatus,
    CallStatus,
    Disposition,
    EndReason,
    EvaluationStatus,
    ExecutionStatus,
    GroupStatus,
    Purpose,
    RunStatus,
)

SEALED = "is sealed"
"""Part of the failure of a call that ended after its attempt was sealed. Nobody waits for such a call."""


class Interruptions(NamedTuple):
    """Counts of what went wrong while harnesses ran."""

    executions: int
    """Executions in which a model call failed while the harness waited for it."""
    discarded_tokens: int
    """Tokens that were sampled and then thrown away."""
    harness_errors: int
    """Attempts that infrastructure ended."""


def check_dispositions(rows: RunRows, findings: Findings) -> None:
    """Check that every execution has one disposition, every score a valid reward, every group all members."""
    rewards = {reward.id: reward for reward in rows.rewards}
    for execution in rows.executions:
        terminal = execution.status == ExecutionStatus.TERMINAL
        disposed = execution.disposition in set(Disposition)
        consistent = terminal == disposed == (execution.terminal_at is not None)
        findings.require(
            "every_execution_disposed",
            consistent and (terminal or rows.status != RunStatus.FINISHED),
            f"{execution.id} is {execution.status} with disposition {execution.disposition}",
        )
        if execution.disposition == Disposition.SCORED:
            _check_reward(execution, rewards.get(execution.reward_id or ""), findings)
    for group, members in _members(rows):
        findings.require(
            "every_execution_disposed",
            len(members) == group.size,
            f"{group.id} has {len(members)} executions, not {group.size}",
        )


def _check_reward(execution: AuditExecution, reward: AuditReward | None, findings: Findings) -> None:
    if reward is None or reward.execution_id != execution.id:
        findings.require("rewards_valid", False, f"{execution.id} is scored without a reward of its own")
        return
    in_unit = 0 <= reward.value <= 1
    findings.require("rewards_valid", in_unit, f"{reward.id} is {reward.value}, outside [0, 1]")
    if reward.evaluation_id is None:
        sentence = f"{reward.id} is {reward.value} without an evaluation"
        findings.require("rewards_valid", reward.value == 0, sentence)
        return
    succeeded = reward.evaluation_status == EvaluationStatus.SUCCEEDED
    sentence = f"{reward.id} comes from an evaluation that is {reward.evaluation_status}"
    findings.require("rewards_valid", succeeded, sentence)
    own = reward.evaluation_execution_id == execution.id
    findings.require("rewards_valid", own, f"{reward.id} comes from another execution's evaluation")


def check_account(rows: RunRows, findings: Findings) -> None:
    """Check that a train group's status fits its batch and executions, and no held-out group has a batch."""
    batches = {batch.id: batch.status for batch in rows.batches}
    for group, members in _members(rows):
        if group.purpose != Purpose.TRAIN:
            sentence = f"{group.id} is held out but belongs to {group.batch_id}"
            findings.require("account_balances", group.batch_id is None, sentence)
            continue
        unfinished = sum(member.status != ExecutionStatus.TERMINAL for member in members)
        batch = batches.get(group.batch_id or "")
        holds = {
            GroupStatus.TRAINED: batch == BatchStatus.TRAINED and unfinished == 0,
            GroupStatus.ASSIGNED: batch == BatchStatus.OPEN and unfinished == 0,
            GroupStatus.READY: group.batch_id is None and unfinished == 0,
            GroupStatus.RUNNING: group.batch_id is None and rows.status != RunStatus.FINISHED,
            GroupStatus.DROPPED: group.batch_id is None and unfinished == 0 and bool(group.drop_reason),
        }
        sentence = (
            f"{group.id} is {group.status} with {unfinished} unfinished executions, "
            f"batch {group.batch_id} and drop reason {group.drop_reason}"
        )
        findings.require("account_balances", holds.get(GroupStatus(group.status), False), sentence)


def count_interruptions(rows: RunRows, findings: Findings) -> Interruptions:
    """Count interrupted executions, discarded sampled tokens and attempts that infrastructure ended.

    A call that fails because its own harness is gone interrupts nobody and does not count.
    """
    gone = {EndReason.TIME_LIMIT, EndReason.CANCELLED, EndReason.SANDBOX_LOST}
    ended = {attempt.id for attempt in rows.attempts if attempt.end_reason in gone}
    failed = [
        call
        for call in rows.calls
        if call.status == CallStatus.FAILED
        and call.attempt_id not in ended
        and SEALED not in (call.failure or "")
    ]
    discarded = {c.id: c.num_output_tokens for c in failed if c.num_output_tokens}
    # A failed call and its aborted answer stand for the same tokens: count them once.
    for node in rows.aborts:
        if node.attempt_id not in ended:
            discarded[node.call_id] = max(discarded.get(node.call_id, 0), node.num_tokens)
    for call in failed:
        findings.require("executions_uninterrupted", False, f"{call.id} failed: {call.failure}")
    for name, count in discarded.items():
        findings.require(
            "sampled_tokens_kept", count == 0, f"{count} sampled tokens of {name} were thrown away"
        )
    interrupted = {call.execution_id for call in failed}
    harness_errors = sum(attempt.failure is not None for attempt in rows.attempts)
    return Interruptions(len(interrupted), sum(discarded.values()), harness_errors)


def check_failures(rows: RunRows, findings: Findings) -> None:
    """Check that no execution is scored for an attempt that infrastructure ended."""
    # Rows come ordered by attempt number, so the last one of each execution remains.
    last = {attempt.execution_id: attempt for attempt in rows.attempts}
    for execution in rows.executions:
        attempt = last.get(execution.id)
        if execution.disposition == Disposition.SCORED and attempt is not None:
            sentence = f"{execution.id} is scored, but {attempt.id} ended by a failure: {attempt.failure}"
            findings.require("failures_not_scored", attempt.failure is None, sentence)


def _members(rows: RunRows) -> list[tuple[AuditGroup, list[AuditExecution]]]:
    """Pair each group with its executions."""
    members: dict[str, list[AuditExecution]] = defaultdict(list)
    for execution in rows.executions:
        members[execution.group_id].append(execution)
    return [(group, members[group.id]) for group in rows.groups]
