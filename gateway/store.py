"""Short transactions in a thread pool, so that the event loop never waits for Postgres."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from db.session import transaction
from gateway.clock import Clock

T = TypeVar("T")
AWAY = (OperationalError, InterfaceError)
"""Postgres does not answer, or not now; every other failure is about what was asked of it."""
GONE = ("08", "57P", "53300")
"""SQLSTATEs, or their beginnings, of a Postgres that lets nobody in."""
FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 2.0
LEAST_TRY_S = 10.0
"""Seconds that a try gets, however little of the hold is left: a new connection may need some."""


def is_away(error: BaseException) -> bool:
    """Whether Postgres cannot be reached; a deadlock, a timeout or a full disk is no such failure."""
    state: str | None = getattr(getattr(error, "orig", None), "sqlstate", None)
    return isinstance(error, AWAY) and (state is None or state.startswith(GONE))


class Store:
    """Runs functions of a session or a connection, again while Postgres is away, bounded by ``hold_s``."""

    def __init__(
        self, database: Engine, *, hold_s: float, num_threads: int = 8, clock: Clock | None = None
    ) -> None:
        self._database, self._hold_s, self._clock = database, hold_s, clock or Clock()
        self._single = database.execution_options(isolation_level="AUTOCOMMIT")
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="store")

    async def run(self, work: Callable[[Session], T], stage: str = "other rows") -> T:
        """The result of ``work`` in one transaction, whose CPU time is counted as ``stage``.

        A lost connection leaves open whether it committed, so ``work`` must bear being done twice.
        """

        def once() -> T:
            with self._clock.stage(stage), transaction(self._database) as session:
                return work(session)

        return await self._until_done(once, lambda error: True)

    async def run_single(self, work: Callable[[Connection], T], stage: str) -> T:
        """The same for one statement: it is a transaction by itself, in a single round trip.

        Tried again only while Postgres is away: what else went wrong may be the fault of one of its rows.
        """

        def once() -> T:
            with self._clock.stage(stage), self._single.begin() as connection:
                return work(connection)

        return await self._until_done(once, is_away)

    async def _until_done(self, once: Callable[[], T], passing: Callable[[Exception], bool]) -> T:
        deadline, delay = time.monotonic() + self._hold_s, FIRST_RETRY_S
        while True:
            try:
                return await self._try(once, max(deadline - time.monotonic(), LEAST_TRY_S))
            except AWAY as error:
                if not passing(error) or time.monotonic() + delay > deadline:
                    raise
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_RETRY_S)

    async def _try(self, once: Callable[[], T], timeout_s: float) -> T:
        """One try. Raises OperationalError when the server is silent: its thread is left to its own end."""
        work = asyncio.get_running_loop().run_in_executor(self._threads, once)
        try:
            return await asyncio.wait_for(work, timeout_s)
        except TimeoutError as error:
            raise OperationalError(None, None, error) from error

    def close(self) -> None:
        """Wait for what is under way."""
        self._threads.shutdown(wait=True)
