"""Follow a run until it ends, through restarts of Postgres and Temporal, and clean up after it."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app import stack
from app.cli import workflow_client
from db import run_state
from gyre.contracts.errors import BadInput, GyreError
from gyre.contracts.ids import RunId
from gyre.contracts.lifecycle import RunStatus
from gyre.settings import state
from gyre.settings.services import Services

POLL_S = 1.0
"""Interval between two reads of Postgres."""
CHECK_S = 60.0
"""Interval between two checks that the run's workflow is still open."""
AWAY_S = 60.0
"""Time that the keeper gets to restart a database that was killed."""
CLOSE_S = 15.0
"""Time that the workflows of an ended run get to close by themselves."""


def follow(
    services: Services,
    run: RunId,
    poll: Callable[[], RunStatus],
    *,
    poll_s: float = POLL_S,
    check_s: float = CHECK_S,
    away_s: float = AWAY_S,
) -> RunStatus:
    """Call ``poll`` until it returns a terminal status, and return that status.

    Raises GyreError when the services were stopped, when Postgres stays away for ``away_s``, and when two
    checks in a row find the run's workflow closed although the run has not ended: a terminated workflow, for
    one, writes nothing to Postgres. One check is not enough, because `gyre stop` closes the workflow a few
    seconds before it marks the run.
    """
    status, checked_at, was_closed = RunStatus.CREATED, time.monotonic(), False
    polled_at = checked_at
    while True:
        try:
            status, polled_at = poll(), time.monotonic()
        except BadInput as error:
            if stack.is_down(state.state_dir(), services):
                raise GyreError(f"the services were stopped; run {run} continues after `gyre up`") from error
            if time.monotonic() - polled_at >= away_s:
                raise GyreError(f"Postgres stayed away for {away_s:.0f} s: {error}") from error
        if status in run_state.TERMINAL:
            return status
        if time.monotonic() - checked_at >= check_s:
            is_closed = False
            with suppress(BadInput):  # Temporal is away for a moment; the keeper restarts it
                is_closed = asyncio.run(workflow_client.is_closed(services, run))
            if is_closed and was_closed:
                raise GyreError(
                    f"run '{run}' is {status} but its workflow has closed, so it makes no progress: "
                    "resume it with `gyre run FILE --resume`"
                )
            checked_at, was_closed = time.monotonic(), is_closed
        time.sleep(poll_s)


def settle(state_dir: Path, run: RunId, services: Services, status: RunStatus) -> None:
    """Close the workflows of a run whose row is terminal, then end its processes.

    A failed run leaves groups and rollouts in progress: they are cancelled.
    """
    if status is RunStatus.FAILED:
        asyncio.run(workflow_client.cancel(services, run, limit_s=CLOSE_S))
    else:
        asyncio.run(workflow_client.wait_closed(services, run, limit_s=CLOSE_S))
    stack.stop_run(state_dir, run)
