"""Heartbeats of activities that work in a thread, so that a killed worker is noticed in seconds."""

import contextvars
import threading
from collections.abc import Generator
from contextlib import contextmanager

from temporalio import activity

HEARTBEAT_S = 5.0


@contextmanager
def beating(every_s: float = HEARTBEAT_S) -> Generator[None, None, None]:
    """Heartbeat from a thread of its own while the block, which may be in C for long, works."""
    done = threading.Event()
    # An activity's context belongs to its own thread; a copy of it is what the other one may use.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(_beat, done, every_s), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _beat(done: threading.Event, every_s: float) -> None:
    activity.heartbeat()
    while not done.wait(every_s):
        activity.heartbeat()
