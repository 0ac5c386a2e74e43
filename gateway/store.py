"""Short transactions in a thread pool, and the statements of every call in the event loop itself."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from db.direct import Direct, Statement
from db.session import Database, transaction
from gateway.clock import Clock

T = TypeVar("T")
AWAY = (OperationalError, InterfaceError)
"""Postgres does not answer, or not now; every other failure is about what was asked of it."""
GONE = ("08", "57P", "53300")
"""SQLSTATEs, or their beginnings, of a Postgres that lets nobody in."""
FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 2.0
CLOSE_S = 5.0
"""Seconds that a stopping gateway gives the statement under way."""
LEAST_TRY_S = 10.0
"""Seconds that a try gets, however little of the hold is left: a new connection may need some."""


def is_away(error: BaseException) -> bool:
    """Whether Postgres cannot be reached; a deadlock, a timeout or a full disk is no such failure."""
    state: str | None = getattr(getattr(error, "orig", None), "sqlstate", None)
    return isinstance(error, AWAY) and (state is None or state.startswith(GONE))


class Store:
    """Runs functions of a session and single statements, again while Postgres is away, for ``hold_s``."""

    def __init__(
        self, database: Database, *, hold_s: float, num_threads: int = 8, clock: Clock | None = None
    ) -> None:
        self._database, self._hold_s, self._clock = database, hold_s, clock or Clock()
        self._direct, self._one_by_one = Direct(database), asyncio.Lock()
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="store")

    async def run(self, work: Callable[[Session], T], stage: str = "other rows") -> T:
        """The result of ``work`` in one transaction, whose CPU time is counted as ``stage``.

        A lost connection leaves open whether it committed, so ``work`` must bear being done twice.
        """

        def once() -> T:
            with self._clock.stage(stage), transaction(self._database) as session:
                return work(session)

        return await self._until_done(partial(self._in_thread, once), lambda error: True)

    async def write(self, statement: Callable[[], Statement], stage: str) -> set[str]:
        """The ids that one statement returns: it is a transaction by itself, in a single round trip.

        One goes after the other, so that one server process does them all and has at hand what they need.
        Tried again only while Postgres is away: what else went wrong may be the fault of one of its rows.
        """

        async def rows() -> list[tuple[Any, ...]]:
            return await self._direct.run(statement())

        async def once(timeout_s: float) -> set[str]:
            deadline = time.monotonic() + timeout_s
            async with asyncio.timeout(timeout_s):
                await self._one_by_one.acquire()
            try:
                running = asyncio.create_task(self._clock.staged(stage, rows()))
                if not (await asyncio.wait({running}, timeout=deadline - time.monotonic()))[0]:
                    self._direct.abandon()
                    raise TimeoutError
            finally:
                self._one_by_one.release()
            return {row[0] for row in running.result()}

        return await self._until_done(once, is_away)

    async def _until_done(
        self, once: Callable[[float], Awaitable[T]], passing: Callable[[Exception], bool]
    ) -> T:
        """The result of ``once``, which is told how many seconds it has."""
        deadline, delay = time.monotonic() + self._hold_s, FIRST_RETRY_S
        while True:
            try:
                return await _answered(once(max(deadline - time.monotonic(), LEAST_TRY_S)))
            except AWAY as error:
                if not passing(error) or time.monotonic() + delay > deadline:
                    raise
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_RETRY_S)

    async def _in_thread(self, work: Callable[[], T], timeout_s: float) -> T:
        """One try; a thread that gets no answer is left to its own end."""
        return await asyncio.wait_for(
            asyncio.get_running_loop().run_in_executor(self._threads, work), timeout_s
        )

    async def idle(self) -> None:
        """Return when the statement under way is done, or has had its time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S), self._one_by_one:
                return

    def close(self) -> None:
        """Wait for the threads, and close the connection of `write`."""
        self._threads.shutdown(wait=True)
        self._direct.close()


async def _answered(work: Awaitable[T]) -> T:
    """Raises OperationalError when the server is silent for too long."""
    try:
        return await work
    except TimeoutError as error:
        raise OperationalError(None, None, error) from error
