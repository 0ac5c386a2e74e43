"""Every wait is "wake or 60 s, then read": a lost signal costs a minute, never the run."""

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

POLL = timedelta(seconds=60)


async def wake_or_poll(woken: Callable[[], bool]) -> None:
    """Return when woken, or after a minute."""
    try:
        await workflow.wait_condition(woken, timeout=POLL, timeout_summary="look again")
    except TimeoutError:
        return
