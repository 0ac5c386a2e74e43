"""Follow a running sandbox to its end: output, forwarding, time limit, memory and disk caps."""

import contextlib
import os
import select
import time
from collections.abc import Callable
from typing import Any

from sandbox.relay import Relay
from sandbox.spawn import Sandbox

CHECK_S = 1.0
CHECK_SHARE = 100
"""Ratio of waiting to checking, so that checking a large workspace costs at most 1 % of a core."""
READ_BYTES = 1 << 16
KILLED = 128
"""Exit codes above this one are deaths by signal."""
STOP_PATIENCE_S = 0.5
"""Time for a stop request to follow the signal: whoever ends everything may reach the sandbox first."""

EXITED, TIME_LIMIT, CANCELLED = "exited", "time_limit", "cancelled"


def follow(
    sandbox: Sandbox,
    spec: dict[str, Any],
    output: int,
    on_output: Callable[[bytes], None],
    *,
    deadline: float,
    stop: int | None = None,
) -> tuple[str, str | None]:
    """Return (end reason, failure sentence) when the sandbox's program has ended or must be ended.

    ``output`` is the read end of its stdout and stderr, ``deadline`` a ``time.monotonic()`` value, ``stop`` a
    descriptor that becomes readable when a stop is requested. Ending the sandbox is left to the caller.
    """
    poll = select.poll()
    handlers: dict[int, Callable[[int], None]] = {}
    os.set_blocking(output, False)
    handlers[output] = lambda _events: _read_output(output, on_output, poll)
    poll.register(output, select.POLLIN)
    poll.register(sandbox.pidfd, select.POLLIN)
    if stop is not None:
        poll.register(stop, select.POLLIN)
    relay = None
    if sandbox.gateway is not None:
        relay = Relay(sandbox.gateway, spec["gateway_socket"], poll, handlers)
    try:
        reason = _loop(sandbox, spec, poll, handlers, relay, deadline, stop)
        drain(output, on_output)
        return reason
    finally:
        if relay is not None:
            relay.close()


def _loop(
    sandbox: Sandbox, spec: dict[str, Any], poll: "select.poll", handlers: dict[int, Callable[[int], None]],
    relay: Relay | None, deadline: float, stop: int | None,
) -> tuple[str, str | None]:  # fmt: skip
    next_check = time.monotonic() + CHECK_S
    while True:
        now = time.monotonic()
        if now >= deadline:
            return TIME_LIMIT, None
        if now >= next_check:
            if problem := over_limit(sandbox, spec):
                return EXITED, problem
            next_check = time.monotonic() + max(CHECK_S, CHECK_SHARE * (time.monotonic() - now))
        wait_s = min(deadline, next_check) - now
        if relay is not None and relay.retry_s is not None:
            wait_s = min(wait_s, relay.retry_s)
        events = poll.poll(max(1.0, 1000 * wait_s))  # at least 1 ms, so that rounding cannot make it spin
        ready = {fd for fd, _ in events}
        if sandbox.pidfd in ready and sandbox.reap():
            return (CANCELLED if _was_stopped(sandbox, stop) else EXITED), None
        if stop is not None and stop in ready:
            return CANCELLED, None
        for fd, event in events:
            # An earlier handler of this round may have closed the descriptor.
            if handler := handlers.get(fd):
                handler(event)
        if relay is not None and relay.retry_s is not None:
            relay.retry()


def _was_stopped(sandbox: Sandbox, stop: int | None) -> bool:
    """Return whether a stop was requested of an ended sandbox: half-done work must not pass for finished."""
    if stop is None:
        return False
    by_signal = sandbox.exit_code is not None and sandbox.exit_code > KILLED
    return bool(select.select([stop], [], [], STOP_PATIENCE_S if by_signal else 0)[0])


def _read_output(fd: int, on_output: Callable[[bytes], None], poll: "select.poll") -> None:
    data = b""
    with contextlib.suppress(BlockingIOError):
        data = os.read(fd, READ_BYTES)
        if not data:
            poll.unregister(fd)
    if data:
        on_output(data)


def drain(fd: int, on_output: Callable[[bytes], None]) -> None:
    """Read what is left in a pipe without waiting for more."""
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        while data := os.read(fd, READ_BYTES):
            on_output(data)


def over_limit(sandbox: Sandbox, spec: dict[str, Any]) -> str | None:
    """Return one sentence if the sandbox holds more memory or disk than it may, else None."""
    caps = spec["caps"]
    processes = descendants(sandbox.init)
    # Resident memory counts a shared page once per process: a cheap upper bound that is usually enough.
    if resident_bytes(processes) > caps["memory_bytes"]:
        memory = private_bytes(processes)
        if memory > caps["memory_bytes"]:
            return f"it used {memory} bytes of memory, more than the {caps['memory_bytes']} allowed"
    disk = sum(tree_bytes(folder, caps["workspace_bytes"]) for folder in spec["owned"])
    if disk > caps["workspace_bytes"]:
        return f"it wrote more than the {caps['workspace_bytes']} bytes allowed"
    return None


def descendants(init: int) -> list[int]:
    """Return the process and all its descendants."""
    found, queue = [], [init]
    while queue:
        pid = queue.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    queue += map(int, file.read().split())
    return found


def resident_bytes(processes: list[int]) -> int:
    """Return the sum of resident memory, in which a shared page counts once per process."""
    total = 0
    for pid in processes:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/statm") as file:
            total += int(file.read().split()[1])
    return total * os.sysconf("SC_PAGE_SIZE")


def private_bytes(processes: list[int]) -> int:
    """Return the memory that no file backs; each page counts once, however many processes share it."""
    total = 0
    for pid in processes:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += 1024 * int(line.split()[1])
    return total


def tree_bytes(folder: str, enough: int) -> int:
    """Return the bytes that the files of a tree hold or claim to hold; stops once above ``enough``."""
    total, queue = 0, [folder]
    while queue and total <= enough:
        with contextlib.suppress(OSError), os.scandir(queue.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    queue.append(entry.path)
                    continue
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    total += max(status.st_size, 512 * status.st_blocks)
                if total > enough:
                    return total
    return total
