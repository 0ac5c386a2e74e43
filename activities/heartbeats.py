"""Heartbeats and polls of long activities.

A killed worker is noticed when its heartbeats stop: gyre/durable/options.py allows 20 to 30 seconds.
"""

import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from temporalio import activity

R = TypeVar("R")

HEARTBEAT_S = 2.0
"""Period of heartbeats: ten fit into the shortest time-out. The SDK sends the server only some of them."""
POLL_S = 0.25
"""Period of polls of Postgres: short compared with a rollout, long compared with a poll (milliseconds)."""


@asynccontextmanager
async def heartbeats() -> AsyncGenerator[None]:
    """Send heartbeats while the block awaits something that does not send any itself."""

    async def send() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(HEARTBEAT_S)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        task.cancel()


@contextmanager
def heartbeats_from_thread(period_s: float = HEARTBEAT_S) -> Generator[None]:
    """Send heartbeats from a separate thread while the block works, even if it is in C code for long."""
    done = threading.Event()

    def send() -> None:
        activity.heartbeat()
        while not done.wait(period_s):
            activity.heartbeat()

    # The activity's context belongs to its own thread; another thread may use a copy.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(send,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


async def poll(read: Callable[[], R | None]) -> R:
    """Call ``read`` in a thread, with a heartbeat before each call, until it returns a value."""
    while True:
        activity.heartbeat()
        if (found := await asyncio.to_thread(read)) is not None:
            return found
        await asyncio.sleep(POLL_S)
