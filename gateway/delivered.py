"""Writes down which answers were delivered, off the call path and many at a time."""

import asyncio
import contextlib

from sqlalchemy.exc import SQLAlchemyError

from db import calls
from gateway.store import Store
from gyre.contracts.ids import AttemptId, CallId

GATHER_S = 0.5
"""How long deliveries are gathered for one write; nobody waits for it."""


class DeliveryLog:
    """One write at a time; what is added meanwhile goes with the next one.

    A gateway that dies first leaves the answer undelivered in the record, and a repeated request gets
    the same answer again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: dict[CallId, AttemptId] = {}
        self._writer: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    @property
    def attempts(self) -> set[AttemptId]:
        """Whose record does not say yet what was delivered."""
        return set(self._pending.values())

    def add(self, attempt: AttemptId, call: CallId) -> None:
        """Have it written that the call's answer was delivered; returns at once."""
        self._pending[call] = attempt
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Return when all that was added is written, or cannot be."""
        self._closing.set()
        if self._writer is not None:
            await self._writer

    async def _write(self) -> None:
        while self._pending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER_S):
                    await self._closing.wait()
            batch = sorted(self._pending)
            try:
                await self._store.run(lambda s, batch=batch: calls.mark_delivered(s, batch), "delivered")
            except SQLAlchemyError:
                return  # Kept: the next delivery tries again.
            for call in batch:
                self._pending.pop(call, None)
