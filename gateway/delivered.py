"""Records which answers were delivered, off the call path and many at a time."""

import asyncio
import contextlib

from sqlalchemy.exc import SQLAlchemyError

from db import calls
from gateway.store import Store
from gyre.contracts.ids import AttemptId, CallId

GATHER_S = 0.5
"""How long deliveries are gathered for one write; nobody waits for it."""


class DeliveryLog:
    """Runs one write at a time; what is added in the meantime goes into the next one.

    If the gateway dies first, the record shows the answer as undelivered, and a repeated request gets the
    same answer again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: dict[CallId, AttemptId] = {}
        self._writer: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    @property
    def attempts(self) -> set[AttemptId]:
        """The attempts with deliveries that are not written yet."""
        return set(self._pending.values())

    def add(self, attempt: AttemptId, call: CallId) -> None:
        """Schedule the write that the call's answer was delivered; return at once."""
        self._pending[call] = attempt
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Return when everything added has been written, or could not be."""
        self._closing.set()
        if self._writer is not None:
            await self._writer

    async def _write(self) -> None:
        while self._pending:
            # Gather for a while, but not when the gateway stops.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER_S):
                    await self._closing.wait()
            batch = sorted(self._pending)
            try:
                await self._store.run(lambda s, batch=batch: calls.mark_delivered(s, batch))
            except SQLAlchemyError:
                return  # They stay pending: the next delivery tries again.
            for call in batch:
                self._pending.pop(call, None)
