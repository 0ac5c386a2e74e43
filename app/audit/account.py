"""Dispositions, the account of groups, and what failed on the way."""

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
"""In the failure of a call that came back after its attempt was sealed: nobody waits for it any more."""


class Interruptions(NamedTuple):
    """What went wrong while harnesses ran."""

    executions: int
    """Executions one of whose model calls failed while its harness waited for it."""
    discarded_tokens: int
    """Sampled, then thrown away."""
    harness_errors: int
    """Attempts that infrastructure ended."""


def check_dispositions(rows: RunRows, findings: Findings) -> None:
    """One disposition for each execution, a valid reward behind each score, all N in each group."""
    rewards = {reward.id: reward for reward in rows.rewards}
    for execution in rows.executions:
        _check_disposition(execution, rows.status, findings)
        if execution.disposition == Disposition.SCORED:
            _check_reward(execution, rewards.get(execution.reward_id or ""), findings)
    for group, members in _members(rows):
        findings.require(
            "every_execution_disposed",
            len(members) == group.size,
            f"{group.id} has {len(members)} executions, not {group.size}",
        )


def _check_disposition(execution: AuditExecution, run_status: str, findings: Findings) -> None:
    terminal = execution.status == ExecutionStatus.TERMINAL
    disposed = execution.disposition in set(Disposition)
    sentence = f"{execution.id} is {execution.status} with disposition {execution.disposition}"
    consistent = terminal == disposed == (execution.terminal_at is not None)
    over = run_status != RunStatus.FINISHED or terminal
    findings.require("every_execution_disposed", consistent and over, sentence)


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
    """Each dispatched train group is trained, ready, assigned, running or dropped, and is what it says."""
    batches = {batch.id: batch.status for batch in rows.batches}
    for group, members in _members(rows):
        if group.purpose != Purpose.TRAIN:
            sentence = f"{group.id} is held out and in {group.batch_id}"
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
    """Executions interrupted, sampled tokens discarded and attempts that infrastructure ended.

    A call that ends because its own harness is gone interrupts nobody.
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
    return Interruptions(len(interrupted), sum(discarded.values()), _count_errors(rows, findings))


def _count_errors(rows: RunRows, findings: Findings) -> int:
    """Attempts that infrastructure ended. They may happen; being scored for one may not."""
    last = {attempt.execution_id: attempt for attempt in rows.attempts}  # ordered by attempt number
    for execution in rows.executions:
        attempt = last.get(execution.id)
        if execution.disposition == Disposition.SCORED and attempt is not None:
            sentence = f"{execution.id} is scored though {attempt.id} ended by failure: {attempt.failure}"
            findings.require("failures_not_scored", attempt.failure is None, sentence)
    return sum(attempt.failure is not None for attempt in rows.attempts)


def _members(rows: RunRows) -> list[tuple[AuditGroup, list[AuditExecution]]]:
    members: dict[str, list[AuditExecution]] = defaultdict(list)
    for execution in rows.executions:
        members[execution.group_id].append(execution)
    return [(group, members[group.id]) for group in rows.groups]
