"""Process identity, exact signals, and exit with the parent.

A process is its pid, its start time and the machine's boot: a pid alone may have been reused. A signal goes
through a pidfd that is held while the identity is compared, so it never reaches another process.
"""

import contextlib
import os
import select
import signal
from typing import NamedTuple


class ProcessIdentity(NamedTuple):  # no dataclass: the supervisor of a harness imports this in milliseconds
    pid: int
    start: str
    """Boot id and start time in clock ticks, so that neither a reboot nor a reused pid is mistaken for it."""

    @property
    def start_ticks(self) -> int:
        return int(self.start.rpartition("/")[2])


def boot_id() -> str:
    """Return the id of this start of the machine; process ids recorded under another one mean nothing."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a live process, or None if there is no such process or only a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The name, which may hold anything, ends at the last parenthesis; see proc(5), fields 3 and 22.
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, start_ticks = fields[0], fields[19]
    return None if state in "ZX" else ProcessIdentity(pid, f"{boot_id()}/{start_ticks}")


def is_alive(process: ProcessIdentity) -> bool:
    return identify(process.pid) == process


def send_signal(process: ProcessIdentity, number: int) -> bool:
    """Signal exactly this process. Returns False if it is gone."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)
        return True
    finally:
        os.close(pidfd)


def exit_with(parent: int) -> None:
    """Kill this process as soon as process ``parent`` ends, so that no child survives a killed parent.

    A pidfd is watched from a thread because PR_SET_PDEATHSIG fires when the parent's *thread* that started
    this process ends, which may be long before the parent does.
    """
    import threading  # only here: a supervisor, which has no use for threads, must start quickly

    try:
        pidfd = os.pidfd_open(parent)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return

    def wait() -> None:
        select.select([pidfd], [], [])
        # A graceful end could wait for requests whose callers are gone as well.
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="exit-with-parent", daemon=True).start()
