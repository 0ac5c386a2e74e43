"""Admission and staleness against the formulas of QwenGyre (arXiv 2609.33848)."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.errors import IllegalTransition
from gyre.contracts.lifecycle import CELL, EXECUTION, GROUP, RUN, CellRole, advance
from gyre.rules.staleness import mean_from_outstanding, mean_staleness, staleness, steady_state
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


@given(st.integers(0, 3), st.integers(1, 4), st.integers(1, 4))
def test_fifo_staleness_follows_the_closed_form(phi: int, mu: int, batch: int) -> None:
    """FIFO use with boundary dispatch to (phi + mu) B, simulated group by group."""
    queue: deque[int] = deque()
    version, seen, outstanding = 0, {}, []
    for _ in range(12):
        queue.extend([version] * ((phi + mu) * batch - len(queue)))
        for _ in range(mu):
            outstanding.append(len(queue))
            seen[version] = [staleness(version, queue.popleft()) for _ in range(batch)]
            version += 1
    steady = [j for j in seen if j >= phi + mu]
    for j in steady:
        assert set(seen[j]) == {steady_state(j, extra=phi, burst=mu)}
    if steady:
        whole = steady[: len(steady) // mu * mu]
        mean = sum(sum(seen[j]) / batch for j in whole) / len(whole)
        assert mean == pytest.approx(mean_staleness(extra=phi, burst=mu))
        counted = [outstanding[j] for j in whole]
        assert mean == pytest.approx(mean_from_outstanding(counted, groups_per_batch=batch))


def test_training_before_dispatch_is_refused() -> None:
    with pytest.raises(ValueError, match="dispatched at 3"):
        staleness(2, 3)


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
