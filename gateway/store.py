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
"""Postgres does not answer; every other failure is about what was asked of it."""
FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 2.0
LEAST_TRY_S = 10.0
"""Seconds that a try gets, however little of the hold is left: a new connection may need some."""


class Store:
    """Runs functions of a session, again while Postgres is away, bounded by ``hold_s``."""

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

        return await self._until_done(once)

    async def run_single(self, work: Callable[[Connection], T], stage: str) -> T:
        """The same for one statement: it is a transaction by itself, in a single round trip."""

        def once() -> T:
            with self._clock.stage(stage), self._single.begin() as connection:
                return work(connection)

        return await self._until_done(once)

    async def _until_done(self, once: Callable[[], T]) -> T:
        deadline, delay = time.monotonic() + self._hold_s, FIRST_RETRY_S
        while True:
            try:
                return await self._try(once, max(deadline - time.monotonic(), LEAST_TRY_S))
            except AWAY:
                if time.monotonic() + delay > deadline:
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
        self._threads.shutdown(wait=True)
