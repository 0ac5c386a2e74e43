"""Milestones: signals that show a harness's progress in its rollout's history."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError

from db import executions
from db.executions import CallTotals
from db.session import Database, transaction
from gyre.contracts.ids import AttemptId

EVERY_S = 60.0
"""At most one per minute, so that an hour's rollout stays far below the limits of a history."""


class Milestones:
    """Signals ``milestone`` to one Rollout when the record has grown. A lost signal does no harm."""

    def __init__(
        self,
        database: Database,
        attempt: AttemptId,
        rollout: Callable[[], WorkflowHandle[Any, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._attempt, self._rollout, self._clock = database, attempt, rollout, clock
        self._began = self._last = clock()
        self._sent = CallTotals(0, 0, 0, 0)

    async def signal_if_due(self) -> None:
        """Read the record and signal what is new, unless that was done less than ``EVERY_S`` ago."""
        now = self._clock()
        if now - self._last < EVERY_S:
            return
        self._last = now
        try:
            totals = await asyncio.to_thread(self._read)
            if totals == self._sent:
                return
            await self._rollout().signal("milestone", _sentence(self._attempt, now - self._began, totals))
        except (RPCError, SQLAlchemyError):
            return  # A milestone must not end a harness; the next one covers this one's calls too.
        self._sent = totals

    def _read(self) -> CallTotals:
        with transaction(self._database) as session:
            return executions.call_totals(session, self._attempt)


def _sentence(attempt: str, seconds: float, totals: CallTotals) -> str:
    """Return ``attempt 1, 12 min: 30 calls, 4521 tokens sampled, 2 branches``."""
    number, minutes = attempt.rsplit("/", 1)[1], round(seconds / 60)
    return (
        f"attempt {number}, {minutes} min: {totals.num_calls} calls, "
        f"{totals.num_output_tokens} tokens sampled, {totals.num_branches} branches"
    )
