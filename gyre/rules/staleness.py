"""Scheduling staleness: how many updates lie between a group's dispatch and its training."""

from collections.abc import Sequence


def staleness(version_trained: int, version_dispatched: int) -> int:
    """d = v_train - v_dispatch, where v_train is the version the update starts from."""
    if version_dispatched > version_trained:
        raise ValueError(f"dispatched at {version_dispatched}, trained earlier at {version_trained}")
    return version_trained - version_dispatched


def steady_state(batch: int, *, extra: float, burst: int) -> float:
    """Mean d of batch j >= phi + mu under FIFO use and integer phi: phi + ((j - phi) mod mu)."""
    return extra + ((batch - extra) % burst)


def mean_staleness(*, extra: float, burst: int) -> float:
    """phi + (mu - 1) / 2, the mean over a whole period."""
    return extra + (burst - 1) / 2


def mean_from_outstanding(outstanding: Sequence[int], *, groups_per_batch: int) -> float:
    """Order-free identity: mean d = mean outstanding groups at update start / B - 1."""
    return sum(outstanding) / len(outstanding) / groups_per_batch - 1
