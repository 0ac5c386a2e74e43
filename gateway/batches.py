"""Gathers the writes of many calls into one statement while the previous one is under way."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from db.direct import Statement
from gateway.store import AWAY, Store, is_away
from gyre.contracts.ids import CallId

log = logging.getLogger(__name__)
MOST_AT_ONCE = 64
"""Calls per transaction: enough to share a flush to the disk, few enough to keep locks short."""


class OfCall(Protocol):
    """One call's share of a batch."""

    @property
    def call(self) -> CallId: ...


I = TypeVar("I", bound=OfCall)  # noqa: E741


class Batches(Generic[I]):
    """Runs one transaction at a time; items that arrive in the meantime go into the next one.

    A lone call is written at once, and a busy gateway needs fewer transactions, not more.
    """

    def __init__(self, store: Store, write: Callable[[Sequence[I]], Statement], name: str) -> None:
        """``write`` builds one statement that returns the calls it wrote and skips the others.

        ``name`` is for the log.
        """
        self._store, self._write, self._name = store, write, name
        self._waiting: list[tuple[I, asyncio.Future[bool]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def put(self, item: I) -> bool:
        """Return True once the item is committed. Otherwise nothing was written; retry it alone.

        Raises OperationalError or InterfaceError when Postgres was away for too long.
        """
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all())
        return await written

    async def _write_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
            try:
                done = await self._write_batch([item for item, _ in batch])
            except AWAY as error:
                for _, written in batch:
                    if not written.cancelled():
                        written.set_exception(error)
            else:
                for item, written in batch:
                    if not written.cancelled():
                        written.set_result(item.call in done)

    async def _write_batch(self, items: Sequence[I]) -> set[str]:
        """Return the calls that one statement wrote."""
        try:
            return await self._store.write(lambda: self._write(items))
        except Exception as error:
            if is_away(error):
                raise
            # One item is at fault and nothing was written: each caller retries alone.
            log.warning("%d calls are written one by one (%s)", len(items), self._name, exc_info=True)
            return set()
