"""Audit batches: their frozen rewards, their advantages, and that each gradient was added exactly once."""

from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from app.audit.findings import Findings
from db.audit import AuditBatchExecution, AuditReward, RunRows
from gyre.contracts.lifecycle import (
    BatchStatus,
    ContributionStatus,
    Disposition,
    MicroStepKind,
    MicroStepStatus,
    Purpose,
)

MIN_RANGE = 1e-6
"""A group whose rewards differ by less has advantage zero, as in the reference's formula."""
ADVANTAGE_TOLERANCE = 1e-6


class Gradients(NamedTuple):
    """Numbers of gradients, one per trajectory, that entered an update never or too often."""

    missing: int
    duplicated: int


def check_batches(rows: RunRows, findings: Findings) -> None:
    """Check M, the frozen rewards, the advantages and the target counts of every batch."""
    rewards = {reward.id: reward for reward in rows.rewards}
    frozen: dict[str, list[AuditBatchExecution]] = defaultdict(list)
    for row in rows.batch_executions:
        frozen[row.batch_id].append(row)
    permuted = rows.config["run"]["control"] == "permuted"
    for batch in rows.batches:
        members = frozen[batch.id]
        groups = {g.id for g in rows.groups if g.batch_id == batch.id and g.purpose == Purpose.TRAIN}
        scored = {
            e.id for e in rows.executions if e.group_id in groups and e.disposition == Disposition.SCORED
        }
        names = {row.execution_id for row in members}
        sentence = f"{batch.id} divides by {batch.num_executions}, but has {len(members)} frozen rewards"
        findings.require("batches_complete", batch.num_executions == len(members), sentence)
        sentence = f"{batch.id} does not hold exactly the scored executions of its groups"
        findings.require("batches_complete", scored == names, sentence)
        for row in members:
            reward = rewards.get(row.reward_id)
            owner = reward.execution_id if reward else None
            own = owner in names if permuted else owner == row.execution_id
            findings.require("rewards_own", own, f"{row.execution_id} trains on the reward of {owner}")
        for reward_id, uses in Counter(row.reward_id for row in members).items():
            findings.require("rewards_own", uses == 1, f"{reward_id} is used {uses} times in one batch")
    _check_advantages(rows, rewards, findings)
    _check_target_counts(rows, findings)


def _check_advantages(rows: RunRows, rewards: dict[str, AuditReward], findings: Findings) -> None:
    loss = rows.config["loss"]
    group_of = {execution.id: execution.group_id for execution in rows.executions}
    placeholders = Counter(e.group_id for e in rows.executions if e.disposition == Disposition.PLACEHOLDER)
    by_group: dict[tuple[str, str | None], list[AuditBatchExecution]] = defaultdict(list)
    for row in rows.batch_executions:
        by_group[row.batch_id, group_of.get(row.execution_id)].append(row)
    for (_, group), members in by_group.items():
        # A missing reward becomes NaN, which equals no recorded advantage.
        values = [rewards[row.reward_id].value if row.reward_id in rewards else np.nan for row in members]
        zeros = placeholders[group or ""] if loss["placeholder_in_baseline"] else 0
        wanted = advantages(values, num_zeros=zeros, normalise_std=loss["normalise_std"])
        for row, advantage in zip(members, wanted, strict=True):
            findings.require(
                "advantages_match",
                bool(abs(row.advantage - advantage) <= ADVANTAGE_TOLERANCE),
                f"{row.execution_id} trains with advantage {row.advantage:.6f}, not {advantage:.6f}",
            )


def advantages(values: list[float], *, num_zeros: int = 0, normalise_std: bool = True) -> list[float]:
    """Return (r - mean) / std, with the population std, for one group's frozen rewards.

    ``num_zeros`` placeholders join mean and std as rewards of zero.
    """
    scored = np.asarray(values, np.float64)
    baseline = np.concatenate([scored, np.zeros(num_zeros)])
    if len(scored) < 2 or np.ptp(baseline) < MIN_RANGE:
        return [0.0] * len(values)
    centred = scored - baseline.mean()
    return list(centred / baseline.std() if normalise_std else centred)


def _check_target_counts(rows: RunRows, findings: Findings) -> None:
    """Check that an execution's |T_i| is the sum over its trajectories, all in its own batch."""
    counted: Counter[tuple[str, str]] = Counter()
    for trajectory in rows.trajectories:
        counted[trajectory.batch_id, trajectory.execution_id] += trajectory.num_targets
    recorded = {(row.batch_id, row.execution_id): row.num_targets for row in rows.batch_executions}
    for pair in sorted(recorded.keys() | counted.keys()):
        findings.require(
            "targets_counted",
            recorded.get(pair) == counted[pair],
            f"{pair[1]} records {recorded.get(pair)} targets in {pair[0]}, its trajectories {counted[pair]}",
        )


def count_gradients(rows: RunRows, findings: Findings) -> Gradients:
    """Check that each trajectory of a trained batch entered the update exactly once; count the others.

    It enters once per accepted contribution to a finished ``grad`` micro-step that holds it.
    """
    trained = {batch.id for batch in rows.batches if batch.status == BatchStatus.TRAINED}
    accepted = _accepted_steps(rows, trained, findings)
    entered: Counter[tuple[str, str]] = Counter()
    for step in rows.micro_steps:
        if step.batch_id in trained and step.kind == MicroStepKind.GRAD:
            done = step.status == MicroStepStatus.DONE
            sentence = f"micro-step {step.number} of {step.batch_id} is {step.status} in a trained batch"
            findings.require("gradients_once", done, sentence)
            times = accepted[step.batch_id, step.number] if done else 0
            for trajectory in step.trajectory_ids:
                entered[step.batch_id, trajectory] += times
    wanted = {(t.batch_id, t.id) for t in rows.trajectories if t.batch_id in trained}
    for batch, name in sorted(wanted | entered.keys()):
        times, allowed = entered[batch, name], int((batch, name) in wanted)
        sentence = f"the gradient of {name} entered {batch} {times} times, not {allowed}"
        findings.require("gradients_once", times == allowed, sentence)
    missing = sum(entered[pair] == 0 for pair in wanted)
    extra = sum(max(0, times - int(pair in wanted)) for pair, times in entered.items())
    return Gradients(missing, extra)


def _accepted_steps(rows: RunRows, trained: set[str], findings: Findings) -> Counter[tuple[str, int]]:
    """Count the accepted contributions that hold each (batch, micro-step)."""
    known = {(step.batch_id, step.number) for step in rows.micro_steps}
    accepted: Counter[tuple[str, int]] = Counter()
    for contribution in rows.contributions:
        if contribution.batch_id not in trained:
            continue
        settled = contribution.status != ContributionStatus.SENT
        sentence = f"{contribution.id} is neither accepted nor void, and its batch is trained"
        findings.require("contributions_settled", settled, sentence)
        if contribution.status == ContributionStatus.ACCEPTED:
            steps = [(contribution.batch_id, number) for number in contribution.micro_steps]
            strange = sorted(set(steps) - known)
            sentence = f"{contribution.id} holds micro-steps that do not exist: {strange}"
            findings.require("contributions_settled", not strange, sentence)
            accepted.update(steps)
    return accepted
