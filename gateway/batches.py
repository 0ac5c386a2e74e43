"""Writes of many calls gathered into one statement while the one before is under way."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from db.direct import Statement
from gateway.store import AWAY, Store, is_away
from gyre.contracts.ids import CallId

log = logging.getLogger(__name__)
MOST_AT_ONCE = 64
"""Calls of one transaction: enough to share a flush to the disk, few enough to keep locks short."""


class OfCall(Protocol):
    """What is written of one call."""

    @property
    def call(self) -> CallId: ...


I = TypeVar("I", bound=OfCall)  # noqa: E741


class Batches(Generic[I]):
    """One transaction at a time; what comes meanwhile goes with the next one.

    A lone call is written at once, and a busy gateway needs fewer transactions, not more.
    """

    def __init__(self, store: Store, write: Callable[[Sequence[I]], Statement], stage: str) -> None:
        """``write`` makes one statement, which returns the calls that it wrote; others stay as they are."""
        self._store, self._write, self._stage = store, write, stage
        self._waiting: list[tuple[I, asyncio.Future[bool]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def put(self, item: I) -> bool:
        """Whether the item is written and committed. If not, nothing of it is: it must be tried apart.

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
                done = await self._written([item for item, _ in batch])
            except AWAY as error:
                for _, written in batch:
                    if not written.cancelled():
                        written.set_exception(error)
            else:
                for item, written in batch:
                    if not written.cancelled():
                        written.set_result(item.call in done)

    async def _written(self, items: Sequence[I]) -> set[str]:
        try:
            return await self._store.write(lambda: self._write(items), self._stage)
        except Exception as error:
            if is_away(error):
                raise
            # The fault of one of them, so nothing is written: each is tried apart.
            log.warning("%d calls are written one by one (%s)", len(items), self._stage, exc_info=True)
            return set()
