"""When a cell may switch to training: a capacity rule and a supply rule.

They are QwenGyre's Waterlevel (arXiv 2609.33848).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Supply:
    """Memory of the supply rule."""

    since_s: float | None = None
    """Start of the current uninterrupted interval with enough ready groups; None while there are too few."""


def observe_supply(supply: Supply, *, ready: int, needed: float, now_s: float) -> Supply:
    """Add one observation of ready groups that no batch holds; too few reset the interval."""
    if ready < needed:
        return Supply()
    return supply if supply.since_s is not None else Supply(since_s=now_s)


def supply_holds(supply: Supply, *, hold_s: float, now_s: float) -> bool:
    """Return whether there have been enough ready groups for tau without a break."""
    return supply.since_s is not None and now_s - supply.since_s >= hold_s


def capacity_allows(*, unfinished: int, capacity: int, cell_capacity: int) -> bool:
    """Return w <= C_R - C_e: unfinished executions still fit once the cell has left rollout."""
    return unfinished <= capacity - cell_capacity


def admits(
    supply: Supply, *, hold_s: float, now_s: float, unfinished: int, capacity: int, cell_capacity: int
) -> bool:
    """Apply both rules. Admissions are serial: test the next cell only after this one has committed."""
    return supply_holds(supply, hold_s=hold_s, now_s=now_s) and capacity_allows(
        unfinished=unfinished, capacity=capacity, cell_capacity=cell_capacity
    )
