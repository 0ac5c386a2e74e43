"""Admission against the formulas of QwenGyre (arXiv 2609.33848)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.errors import IllegalTransition
from gyre.contracts.lifecycle import CELL, EXECUTION, GROUP, RUN, CellRole, advance
from gyre.rules.waterlevel import Supply, observe_supply, supply_holds


@given(st.lists(st.integers(0, 10), min_size=1), st.integers(1, 10), st.integers(0, 5))
def test_a_dip_resets_the_supply_interval(ready: list[int], needed: int, hold: int) -> None:
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
def test_c10_terminal_states_never_change(table: dict) -> None:
    for state, targets in table.items():
        assert advance(table, state, state) is state
        for other in set(table) - targets - {state}:
            with pytest.raises(IllegalTransition):
                advance(table, state, other)


def test_a_cell_cannot_skip_draining() -> None:
    with pytest.raises(IllegalTransition, match="rollout -> training"):
        advance(CELL, CellRole.ROLLOUT, CellRole.TRAINING)
