"""Process identity, exact signals, and exit with the parent.

A process is its pid, its start time and the machine's boot: a pid alone may have been reused. A signal goes
through a pidfd that is held while the identity is compared, so it never reaches another process.
"""

import os
import select
import signal
from typing import NamedTuple


class ProcessIdentity(NamedTuple):  # no dataclass: the supervisor of a harness imports this in milliseconds
    """One process, never to be confused with a later one of the same pid."""

    pid: int
    start: str
    """Boot id and start time in clock ticks, which tell apart reuses of a pid, also across reboots."""

    @property
    def start_ticks(self) -> int:
        return int(self.start.rpartition("/")[2])


def boot_id() -> str:
    """Return the id of the machine's current boot. Pids recorded under another boot mean nothing."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a live process, or None if there is no such process or only a zombie."""
    try:
        # Bytes, because the kernel cuts a process's name to 15 bytes even inside a UTF-8 character.
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name may hold anything and ends at the last parenthesis; see proc(5), fields 3 and 22.
            fields = file.read().rpartition(b")")[2].decode().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, start_ticks = fields[0], fields[19]
    return None if state in "ZX" else ProcessIdentity(pid, f"{boot_id()}/{start_ticks}")


def is_alive(process: ProcessIdentity) -> bool:
    """Return whether exactly this process still runs."""
    return identify(process.pid) == process


def send_signal(process: ProcessIdentity, number: int) -> bool:
    """Signal exactly this process. Return False if it is gone."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # In this order: once the pidfd is open, a reuse of the pid cannot redirect the signal.
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def exit_with(parent: int) -> None:
    """Kill this process as soon as process ``parent`` ends, so that no child survives a killed parent.

    A thread watches a pidfd, because PR_SET_PDEATHSIG fires when the parent's *thread* that started this
    process ends, which may be long before the parent does.
    """
    import threading  # only here: a supervisor, which has no use for threads, must start quickly

    try:
        pidfd = os.pidfd_open(parent)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return

    def watch() -> None:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll()
        # Not SIGTERM: a graceful end could wait for requests whose callers are gone as well.
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()
