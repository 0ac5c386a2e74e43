"""Access to Postgres, tolerant of outages: short transactions in threads, call statements in the loop."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from db.direct import Direct, Statement
from db.session import Database, transaction

T = TypeVar("T")
AWAY = (OperationalError, InterfaceError)
"""Postgres does not answer, or not now; every other failure is about the statement itself."""
GONE = ("08", "57P", "53300")
"""Prefixes of the SQLSTATEs of a Postgres that accepts no connections."""
FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 2.0
CLOSE_S = 5.0
"""Time that a stopping gateway gives the statement under way."""
LEAST_TRY_S = 10.0
"""Shortest time for one try, however little of the hold is left: a new connection may need some."""


def is_away(error: BaseException) -> bool:
    """Return whether Postgres is unreachable; a deadlock, a timeout or a full disk does not count."""
    state: str | None = getattr(getattr(error, "orig", None), "sqlstate", None)
    return isinstance(error, AWAY) and (state is None or state.startswith(GONE))


class Store:
    """Runs transactions and single statements, and retries them for ``hold_s`` while Postgres is away."""

    def __init__(self, database: Database, *, hold_s: float, num_threads: int = 8) -> None:
        self._database, self._hold_s = database, hold_s
        self._direct, self._one_by_one = Direct(database), asyncio.Lock()
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="store")

    async def run(self, work: Callable[[Session], T]) -> T:
        """Return the result of ``work`` in one transaction, run in a thread.

        A lost connection leaves open whether it committed, so ``work`` must tolerate being done twice.
        """

        async def once(timeout_s: float) -> T:
            # A thread that gets no answer is abandoned to its own timeout.
            running = asyncio.get_running_loop().run_in_executor(self._threads, self.transact, work)
            return await asyncio.wait_for(running, timeout_s)

        return await self._retry(once, lambda error: True)

    def transact(self, work: Callable[[Session], T]) -> T:
        """Return the result of ``work`` in one transaction, tried once in the calling thread."""
        with transaction(self._database) as session:
            return work(session)

    async def write(self, statement: Callable[[], Statement]) -> set[str]:
        """Return the ids from one statement, which is a transaction by itself in a single round trip.

        Statements run one at a time, so that one server process keeps its plan cache warm. A statement is
        retried only while Postgres is away: any other failure may be the fault of one of its rows.
        """

        async def rows() -> list[tuple[Any, ...]]:
            return await self._direct.run(statement())

        async def once(timeout_s: float) -> set[str]:
            deadline = time.monotonic() + timeout_s
            async with asyncio.timeout(timeout_s):
                await self._one_by_one.acquire()
            try:
                # Not cancelled on a timeout: its connection is abandoned while the statement still runs.
                running = asyncio.create_task(rows())
                if not (await asyncio.wait({running}, timeout=deadline - time.monotonic()))[0]:
                    self._direct.abandon()
                    raise TimeoutError
            finally:
                self._one_by_one.release()
            return {row[0] for row in running.result()}

        return await self._retry(once, is_away)

    async def _retry(self, once: Callable[[float], Awaitable[T]], may_pass: Callable[[Exception], bool]) -> T:
        """Return the result of ``once``, whose argument is the time for this try, in seconds."""
        deadline, delay = time.monotonic() + self._hold_s, FIRST_RETRY_S
        while True:
            try:
                return await _timeout_as_away(once(max(deadline - time.monotonic(), LEAST_TRY_S)))
            except AWAY as error:
                if not may_pass(error) or time.monotonic() + delay > deadline:
                    raise
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_RETRY_S)

    async def idle(self) -> None:
        """Return when the statement under way is done, or has had its time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S), self._one_by_one:
                return

    def close(self) -> None:
        """Wait for the threads, and close the connection of `write`."""
        self._threads.shutdown(wait=True)
        self._direct.close()


async def _timeout_as_away(work: Awaitable[T]) -> T:
    """Raise OperationalError in place of TimeoutError: a server that is silent for too long is away."""
    try:
        return await work
    except TimeoutError as error:
        raise OperationalError(None, None, error) from error
