"""Who a process id means: its start time and the machine's boot make it unique."""

import contextlib
import os


def boot_id() -> str:
    """Changes at every start of the machine, after which no recorded process id means anything."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def start_ticks(pid: int) -> int | None:
    """Start time in clock ticks since boot; None when there is no such process or only its remains."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def signal_process(pid: int, ticks: int, number: int) -> bool:
    """Send a signal to the process that had this id and start time. False when it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # Compared while the pidfd is held, so the id cannot come to mean another process in between.
        if start_ticks(pid) != ticks:
            return False
        import signal

        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)
        return True
    finally:
        os.close(pidfd)
