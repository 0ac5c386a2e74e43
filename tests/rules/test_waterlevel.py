"""Rules for when a cell may switch to training, and the lifecycle tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.errors import IllegalTransition
from gyre.contracts.lifecycle import CELL, EXECUTION, GROUP, RUN, CellRole, advance
from gyre.rules.waterlevel import Supply, admits, capacity_allows, observe_supply, supply_holds


@given(st.lists(st.integers(0, 10), min_size=1), st.integers(1, 10), st.integers(0, 5))
def test_too_few_ready_groups_reset_the_supply_interval(ready: list[int], needed: int, hold: int) -> None:
    supply = Supply()
    for now, count in enumerate(ready):
        supply = observe_supply(supply, ready=count, needed=needed, now_s=float(now))
        run = 0
        for back in reversed(ready[: now + 1]):
            if back < needed:
                break
            run += 1
        assert supply_holds(supply, hold_s=hold, now_s=float(now)) == (run > 0 and run - 1 >= hold)


@pytest.mark.parametrize("table", [CELL, EXECUTION, GROUP, RUN])
def test_only_allowed_transitions_happen(table: dict) -> None:
    """A late event set an execution that had timed out back to running."""
    for state, targets in table.items():
        assert advance(table, state, state) is state
        for other in set(table) - targets - {state}:
            with pytest.raises(IllegalTransition):
                advance(table, state, other)


def test_a_cell_cannot_skip_draining() -> None:
    with pytest.raises(IllegalTransition, match="rollout -> training"):
        advance(CELL, CellRole.ROLLOUT, CellRole.TRAINING)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20))
def test_a_cell_leaves_rollout_only_if_the_others_can_serve_what_is_unfinished(
    unfinished: int, others: int, own: int
) -> None:
    capacity = others + own
    admitted = capacity_allows(unfinished=unfinished, capacity=capacity, cell_capacity=own)
    assert admitted == (unfinished <= others)


def test_both_rules_must_hold() -> None:
    held, short = Supply(since_s=0.0), Supply()
    room = {"hold_s": 5, "now_s": 5.0, "unfinished": 4, "capacity": 8, "cell_capacity": 4}
    assert admits(held, **room)
    assert not admits(short, **room)
    assert not admits(held, **room | {"now_s": 4.9})
    assert not admits(held, **room | {"unfinished": 5})
