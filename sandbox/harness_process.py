"""Start, attach to, poll and kill the harness of an attempt. Every function may be called again.

An attempt's directory holds ``spec.json`` (0600, it contains the token), ``status.json``,
``supervisor.lock``, ``output.log``, ``workspace/``, ``home/`` and ``provisioned.json``.
"""

import fcntl
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyre.contracts.errors import SandboxFailed
from gyre.contracts.lifecycle import EndReason
from gyre.host.processes import ProcessIdentity, boot_id, is_alive, send_signal
from sandbox import isolation, spawn

START_S = 20.0
STOP_S = 15.0
REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Limits:
    """Limits of one sandbox, in bytes and counts; 0 disables a limit."""

    memory_bytes: int = 2 << 30
    """Memory of all its processes together, checked every second; also per process if ``address_space``."""
    processes: int = 256
    workspace_bytes: int = 1 << 30
    """Size of workspace and home together, checked every second; also the size of the largest file."""
    address_space: bool = True
    """Whether to limit address space; runtimes that reserve far more than they use (Node) need False."""


@dataclass(frozen=True)
class HarnessSpec:
    """Everything a supervisor needs to run one harness in one attempt's directory."""

    directory: Path
    argv: list[str]
    env: dict[str, str]
    cwd: str
    time_limit_s: float
    limits: Limits = Limits()
    gateway_socket: str | None = None
    """Unix socket of the gateway on this machine; None gives the sandbox no network at all."""
    read_only: list[list[str]] = field(default_factory=list[list[str]])
    writable: list[list[str]] = field(default_factory=list[list[str]])
    """``[path on this machine, path inside]``; the sandbox's user becomes the owner of each."""
    isolation: str = field(default_factory=isolation.probe)

    def document(self) -> dict[str, Any]:
        """Return the content of ``spec.json``, which ``spawn.start`` takes."""
        limits = self.limits
        return {
            "argv": self.argv,
            "env": self.env,
            "cwd": self.cwd,
            "time_limit_s": self.time_limit_s,
            "isolation": self.isolation,
            "gateway_socket": self.gateway_socket if self.isolation != isolation.PLAIN else None,
            "read_only": self.read_only,
            "writable": self.writable,
            "owned": [pair[0] for pair in self.writable],
            "limits": {
                "processes": limits.processes,
                "file_bytes": limits.workspace_bytes,
                "address_bytes": limits.memory_bytes if limits.address_space else 0,
            },
            "caps": {"memory_bytes": limits.memory_bytes, "workspace_bytes": limits.workspace_bytes},
        }


@dataclass(frozen=True)
class HarnessStatus:
    """Current state of a harness and, once it has exited, how it ended."""

    state: str
    """``absent`` (never started), ``starting``, ``running`` or ``exited``."""
    end_reason: EndReason | None = None
    exit_code: int | None = None
    failure: str | None = None
    seconds: float = 0.0


def slug(identifier: str) -> str:
    """Return an id in a form that serves as the name of a directory."""
    return identifier.removeprefix("run/").replace("/", "-")


def attempt_directory(state_dir: str | Path, attempt: str) -> Path:
    return Path(state_dir) / "attempts" / slug(attempt)


def start_or_attach(spec: HarnessSpec) -> HarnessStatus:
    """Start the harness unless it was started before; either way return its current status.

    A harness whose supervisor died is not started again: its end is final for the attempt.
    Raises SandboxFailed when the supervisor cannot be started.
    """
    spec.directory.mkdir(parents=True, exist_ok=True)
    with open(spec.directory / "start.lock", "a", opener=_open_private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # only one caller at a time decides whether to start
        status = poll(spec.directory)
        if status.state != "absent":
            return status
        with open(spec.directory / "spec.json", "w", opener=_open_private) as file:
            json.dump(spec.document(), file)
        # -I and -S: no site-packages and no user's environment; only this repository is importable.
        code = f"import sys; sys.path.append({str(REPOSITORY)!r}); from sandbox.supervise import main"
        command = [isolation.python(), "-I", "-S", "-E", "-c", f"{code}; main(sys.argv[1])"]
        try:
            subprocess.run([*command, str(spec.directory)], check=True, timeout=START_S, capture_output=True)
        except (OSError, subprocess.SubprocessError) as error:
            detail = getattr(error, "stderr", None) or str(error).encode()
            raise SandboxFailed(f"the supervisor did not start: {detail.decode()[-300:]}") from error
    return poll(spec.directory)


def poll(directory: Path) -> HarnessStatus:
    """Return the status of a directory's harness. Without its supervisor it has ended as SANDBOX_LOST."""
    status = _read(directory)
    if status is None:
        return HarnessStatus("absent")
    if status["state"] != "exited" and not supervised(directory):
        # It may have written its end after the first read; once the lock is free nothing is written.
        status = _read(directory) or status
    if status["state"] != "exited":
        if supervised(directory):
            return HarnessStatus(status["state"])
        why = "the machine was restarted" if status["boot_id"] != boot_id() else "its supervisor died"
        return HarnessStatus("exited", EndReason.SANDBOX_LOST, failure=f"the harness was lost: {why}")
    return HarnessStatus(
        "exited",
        EndReason(status["end_reason"]),
        status["exit_code"],
        status["failure"],
        status.get("seconds", 0.0),
    )


def kill(directory: Path) -> HarnessStatus:
    """End every process of the harness; return when none is left, or at once if none exists.

    Raises SandboxFailed when one survives SIGKILL.
    """
    status = _read(directory)
    if status is not None and status["boot_id"] == boot_id():
        if supervised(directory):
            _stop_supervisor(directory)
        status = _read(directory) or status
        if status["state"] != "exited":
            _end_orphans(directory, status)
    return poll(directory)


def supervised(directory: Path) -> bool:
    """Return whether a supervisor holds the directory's lock."""
    try:
        lock = os.open(directory / "supervisor.lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _stop_supervisor(directory: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + STOP_S
        signalled = False
        while time.monotonic() < deadline:
            # A supervisor that has just started records its pid a moment after it takes the lock.
            supervisor = _recorded(_read(directory) or {}, "supervisor")
            if not signalled and supervisor is not None:
                signalled = send_signal(supervisor, number)
            if not supervised(directory):
                return
            time.sleep(0.01)
    raise SandboxFailed(f"the supervisor of {directory.name} is still there after SIGKILL")


def _end_orphans(directory: Path, status: dict[str, Any]) -> None:
    """End the sandbox of a killed supervisor: bubblewrap dies with it, but plain processes do not."""
    if status.get("mark"):
        spawn.end_plain(status["sandbox_pid"], status["mark"])
    sandbox = _recorded(status, "sandbox")
    deadline = time.monotonic() + STOP_S
    while sandbox is not None and is_alive(sandbox):
        send_signal(sandbox, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise SandboxFailed(f"the sandbox of {directory.name} is still there after SIGKILL")
        time.sleep(0.01)


def _recorded(status: dict[str, Any], name: str) -> ProcessIdentity | None:
    """Return the process that ``status.json`` records as ``supervisor`` or ``sandbox``, or None."""
    pid, ticks = status.get(f"{name}_pid"), status.get(f"{name}_ticks")
    return None if None in (pid, ticks) else ProcessIdentity(pid, f"{status['boot_id']}/{ticks}")


def _read(directory: Path) -> dict[str, Any] | None:
    try:
        return json.loads((directory / "status.json").read_text())
    except FileNotFoundError:
        return None


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
