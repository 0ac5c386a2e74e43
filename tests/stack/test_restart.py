"""The restart policy as a pure function."""

from hypothesis import given
from hypothesis import strategies as st

from app.stack.restart import RestartPolicy

POLICY = RestartPolicy()
times = st.lists(st.floats(0, 1000), max_size=40)


@given(times, st.floats(0, 1000))
def test_a_delay_is_never_longer_than_the_pause(deaths: list[float], now: float) -> None:
    past = [at for at in deaths if at <= now]
    assert POLICY.first_s <= POLICY.delay_s(past, now) <= POLICY.pause_s


@given(times, st.floats(0, 1000))
def test_one_more_death_never_shortens_the_delay(deaths: list[float], now: float) -> None:
    past = [at for at in deaths if at <= now]
    assert POLICY.delay_s([*past, now], now) >= POLICY.delay_s(past, now)


def test_the_breaker_opens_after_the_burst_and_closes_after_the_window() -> None:
    deaths = [float(i) for i in range(POLICY.burst)]
    assert not POLICY.is_open(deaths, 10.0)
    assert POLICY.is_open([*deaths, 10.0], 10.0)
    assert POLICY.delay_s([*deaths, 10.0], 10.0) == POLICY.pause_s
    assert not POLICY.is_open([*deaths, 10.0], 10.0 + POLICY.window_s)
