"""Admission of a cell to training (QwenGyre's Waterlevel, arXiv 2609.33848): a capacity rule and a
supply rule."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Supply:
    """How long the supply of ready groups has held."""

    since_s: float | None = None
    """Start of the current uninterrupted interval with enough ready groups; None during a dip."""


def observe_supply(supply: Supply, *, ready: int, needed: float, now_s: float) -> Supply:
    """Fold one observation of ready-and-unassigned groups; a dip resets the interval."""
    if ready < needed:
        return Supply()
    return supply if supply.since_s is not None else Supply(since_s=now_s)


def supply_holds(supply: Supply, *, hold_s: float, now_s: float) -> bool:
    """Whether the supply has held without a break for tau."""
    return supply.since_s is not None and now_s - supply.since_s >= hold_s


def capacity_allows(*, unfinished: int, capacity: int, cell_capacity: int) -> bool:
    """w(t) <= C_R(t) - C_e: what is unfinished still fits when the cell has left."""
    return unfinished <= capacity - cell_capacity


def admits(
    supply: Supply, *, hold_s: float, now_s: float, unfinished: int, capacity: int, cell_capacity: int
) -> bool:
    """Both rules at once. Admissions are serial: test the next cell after this one committed."""
    return supply_holds(supply, hold_s=hold_s, now_s=now_s) and capacity_allows(
        unfinished=unfinished, capacity=capacity, cell_capacity=cell_capacity
    )
