"""A process is its pid and its start time: a pid alone may have been given to somebody else."""

import os
import signal
from pathlib import Path

from pydantic import BaseModel, ConfigDict

START_FIELD = 19
"""Index of ``starttime`` behind the closing parenthesis in /proc/<pid>/stat (proc(5), field 22)."""
STATE_FIELD = 0


class ProcessIdentity(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    pid: int
    start: str
    """Boot id and start time in clock ticks, so that neither a reboot nor a reused pid is mistaken."""


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a live process; None if there is none, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[STATE_FIELD] in "ZX":
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ProcessIdentity(pid=pid, start=f"{boot}/{fields[START_FIELD]}")


def is_alive(process: ProcessIdentity) -> bool:
    return identify(process.pid) == process


def send_signal(process: ProcessIdentity, number: signal.Signals) -> None:
    """Signal exactly this process; one that is gone is no error."""
    if not is_alive(process):
        return
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return
