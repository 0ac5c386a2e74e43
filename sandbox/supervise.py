"""The supervisor of one harness: ``python -m sandbox.supervise DIR``.

It detaches and holds ``supervisor.lock`` for as long as it lives, so that liveness can be checked without
trusting a process id. It starts the sandbox that ``spec.json`` describes, forwards its model calls, enforces
the time limit and the caps whether or not a worker is alive, and writes the outcome to ``status.json``.
Standard library only, imported in milliseconds, because there is one per execution.
"""

import fcntl
import json
import os
import signal
import sys
import time
import traceback
from typing import Any

from gyre.contracts.errors import SandboxFailed
from gyre.host.processes import boot_id, identify
from sandbox import spawn, watch

LOG_BYTES = 512 << 10
"""Largest size of ``output.log`` and of ``output.log.1``."""


class OutputLog:
    """Log of the harness's output that keeps its last LOG_BYTES to 2 LOG_BYTES."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, "output.log")
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (closed by close)

    def write(self, data: bytes) -> None:
        if self._file.tell() + len(data) > LOG_BYTES:
            self._file.close()
            os.replace(self._path, self._path + ".1")
            self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115
        self._file.write(data[-LOG_BYTES:])

    def close(self) -> None:
        self._file.close()


def write_status(directory: str, status: dict[str, Any]) -> None:
    """Replace ``status.json`` atomically: a reader sees the old one or the new one."""
    path = os.path.join(directory, "status.json")
    with open(path + ".new", "w") as file:
        json.dump(status, file)
    os.replace(path + ".new", path)


def main(directory: str) -> None:
    """Detach and supervise. Returns in the calling process once ``status.json`` says "starting".

    A second supervisor of the same directory does nothing, nor does one that comes after the end.
    """
    lock = os.open(os.path.join(directory, "supervisor.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if os.path.exists(os.path.join(directory, "status.json")):
        return
    status: dict[str, Any] = {"state": "starting", "boot_id": boot_id(), "started_at": time.time()}
    write_status(directory, status)
    if os.fork():
        os._exit(0)  # the child keeps the lock: flock belongs to the open file, not to a process
    os.setsid()
    _redirect(os.path.join(directory, "supervisor.log"))
    try:
        with open(os.path.join(directory, "spec.json")) as file:
            spec = json.load(file)
        _supervise(directory, spec, status)
    except Exception as error:  # the boundary of this process: any error becomes the status
        traceback.print_exc()
        sentence = str(error) if isinstance(error, SandboxFailed) else f"supervisor: {error!r}"
        ended = {"state": "exited", "end_reason": "sandbox_lost", "exit_code": None, "failure": sentence}
        write_status(directory, status | ended | {"ended_at": time.time()})
        os._exit(1)


def _supervise(directory: str, spec: dict[str, Any], status: dict[str, Any]) -> None:
    stop = _stop_requests()
    began = time.monotonic()
    status |= _identity_keys("supervisor", os.getpid())
    write_status(directory, status)
    read, write = os.pipe()
    log = OutputLog(directory)
    try:
        sandbox = spawn.start(spec, directory, write)
    except SandboxFailed:
        watch.drain(read, log.write)
        raise
    finally:
        os.close(write)  # or the pipe would never report the end of the output
    status |= {"state": "running", "mark": sandbox.mark, **_identity_keys("sandbox", sandbox.init)}
    # Before the release: whoever kills the harness must find every process id on record.
    write_status(directory, status)
    sandbox.release()
    try:
        deadline = began + spec["time_limit_s"]
        reason, failure = watch.follow(sandbox, spec, read, log.write, deadline=deadline, stop=stop)
    finally:
        sandbox.end()
        watch.drain(read, log.write)
        log.close()
    code = sandbox.exit_code if reason == watch.EXITED and failure is None else None
    sandbox.close()
    ended = {"state": "exited", "end_reason": reason, "exit_code": code, "failure": failure}
    seconds = time.monotonic() - began
    write_status(directory, status | ended | {"ended_at": time.time(), "seconds": seconds})


def _identity_keys(name: str, pid: int) -> dict[str, int | None]:
    """Return the keys of ``status.json`` that identify a process; its ticks are None if it is gone."""
    process = identify(pid)
    return {f"{name}_pid": pid, f"{name}_ticks": process.start_ticks if process else None}


def _stop_requests() -> int:
    """Return a descriptor that becomes readable when SIGTERM or SIGINT asks to end the sandbox."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return read


def _redirect(log: str) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, null), (2, errors)):
        os.dup2(source, target)


if __name__ == "__main__":
    main(sys.argv[1])
