"""Processes that outlive their parent: harnesses are detached so that they survive a killed worker."""

import ctypes
import os
import signal
import time
from pathlib import Path

import psutil

from gyre.host.processes import ProcessIdentity, identify, is_alive, send_signal

MARK = "GYRE_KEPT_BY"
"""Environment variable of everything that a keeper starts; its value is the state directory."""
RUN_MARK = "GYRE_RUN"
SUPERVISOR = "sandbox.supervise"
"""Part of the command line of every harness supervisor."""
PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make orphans of our descendants our children, so that none can hide from ``down``."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(own: set[int]) -> None:
    """Reap the zombies that we inherited as subreaper, and only those.

    The code that started a process needs its exit status. Such processes are ``own``, each the leader of
    its own session, and helpers that one of our threads waits for, which are in our session. An inherited
    process descends from one of ``own``, so it is neither.
    """
    for child in psutil.Process().children():
        try:
            inherited = child.pid not in own and os.getsid(child.pid) != os.getsid(0)
            if inherited and identify(child.pid) is None:
                os.waitpid(child.pid, os.WNOHANG)
        except (ChildProcessError, ProcessLookupError):
            continue


def leftovers(root: Path, run: str | None = None) -> list[ProcessIdentity]:
    """Return the living processes started under this state directory (for this run) and their descendants.

    Only for the keeper: a harness does not carry the marks in its environment, so the keeper's children count
    too, all of them or, for a run, those whose command line names the run's folder.
    """
    wanted = {f"{MARK}={root}".encode()} | ({f"{RUN_MARK}={run}".encode()} if run else set())
    me = psutil.Process()
    found = [p for p in psutil.process_iter() if p.pid != me.pid and wanted <= _environment(p.pid)]
    found += [p for p in me.children() if run is None or _names(p, root / "runs" / run)]
    family = {member for process in found for member in [process, *_descendants(process)]}
    return [identity for member in family if (identity := identify(member.pid))]


def end_all(processes: list[ProcessIdentity], grace_s: float, first: signal.Signals = signal.SIGTERM) -> None:
    """End processes: the first signal, a grace period, SIGKILL.

    Supervisors come first. A supervisor that gets the signal ends its sandbox and records a cancelled
    harness; if its sandbox were killed first, it would record a harness that ended by itself.
    """
    supervisors = [process for process in processes if _supervises(process)]
    if supervisors and len(supervisors) < len(processes):
        end_all(supervisors, grace_s, first)
    for number, wait_s in ((first, grace_s), (signal.SIGKILL, 5.0)):
        for process in processes:
            send_signal(process, number)
        deadline = time.monotonic() + wait_s
        while any(is_alive(p) for p in processes) and time.monotonic() < deadline:
            time.sleep(0.05)


def _environment(pid: int) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _supervises(process: ProcessIdentity) -> bool:
    try:
        return SUPERVISOR.encode() in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return False


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _names(process: psutil.Process, folder: Path) -> bool:
    try:
        # The slash keeps run q1 from matching the folder of run q10.
        return any(f"{folder}/" in f"{part}/" for part in process.cmdline())
    except psutil.Error:
        return False
