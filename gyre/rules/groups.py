"""Readiness of a group, and the group-relative advantages of its executions (QwenGyre, arXiv 2609.33848)."""

from collections.abc import Mapping, Sequence
from math import sqrt

from gyre.contracts.lifecycle import Disposition, GroupStatus

MIN_RANGE = 1e-6
"""Range of rewards below which they carry no signal, only rounding."""


def group_outcome(dispositions: Sequence[Disposition | None], size: int) -> GroupStatus:
    """Return RUNNING until all executions are terminal, then READY, or DROPPED if none was scored."""
    if len(dispositions) < size or any(each is None for each in dispositions):
        return GroupStatus.RUNNING
    if Disposition.SCORED not in dispositions:
        return GroupStatus.DROPPED
    return GroupStatus.READY


def advantages(
    rewards: Mapping[str, float], *, normalise_std: bool = True, num_placeholders: int = 0
) -> dict[str, float]:
    """Return the advantage of each scored execution of one group, by execution id.

    A = (r - mean) / std with the population standard deviation, or r - mean if ``normalise_std`` is off. All
    are 0 if fewer than two executions are scored or the rewards' range is below MIN_RANGE.
    ``num_placeholders`` further rewards of 0 enter the mean and the deviation.
    """
    values = [*rewards.values(), *([0.0] * num_placeholders)]
    if len(rewards) < 2 or max(values) - min(values) < MIN_RANGE:
        return dict.fromkeys(rewards, 0.0)
    mean = sum(values) / len(values)
    std = sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    scale = std if normalise_std else 1.0
    return {name: (reward - mean) / scale for name, reward in rewards.items()}
