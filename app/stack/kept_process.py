"""One process kept alive; our own, because it adopts processes that it did not start.

Starts or adopts a process, checks it, restarts it with backoff, and stops it.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from enum import StrEnum
from typing import Any

from app.stack.ledger import Entry, Ledger
from app.stack.restart import RestartPolicy
from app.stack.spec import ProcessSpec
from gyre.contracts.errors import BadInput
from gyre.host.ports import require_free
from gyre.host.processes import ProcessIdentity, identify, is_alive, send_signal

WATCH_S = 0.2
START_LIMIT_S = 90.0
"""On a loaded laptop a server that has to replay its log takes a while."""
WAIT_UP_S = 20.0
KILL_S = 10.0
"""Time for a process to disappear after SIGKILL."""
LOG_BYTES = 32 << 20
"""A log that is longer when its process starts is kept as ``.old``."""


class KeptState(StrEnum):
    STARTING = "starting"
    UP = "up"
    RESTARTING = "restarting"
    PAUSED = "paused"
    """The circuit breaker is open: the process died too often and is left alone for a while."""
    DOWN = "down"


class KeptProcess:
    """A process that is started again whenever it dies, until ``stop``."""

    def __init__(self, spec: ProcessSpec, ledger: Ledger, policy: RestartPolicy) -> None:
        self.spec = spec
        self.state = KeptState.DOWN
        self.num_restarts = 0
        self.detail: str | None = None
        """Why it is not up, or how it last died."""
        self.process: ProcessIdentity | None = None
        self._ledger = ledger
        self._policy = policy
        self._deaths: list[float] = []
        self._popen: subprocess.Popen[bytes] | None = None
        """None for an adopted process, whose exit status only its parent can collect."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when the process serves; it is kept alive from then on.

        Raises BadInput when a port is taken or the process does not come up.
        """
        self.state = KeptState.STARTING
        if not await self._adopt():
            await self._spawn()
        try:
            await self._until_healthy()
        except BadInput:
            await self._terminate()
            raise
        self._task = asyncio.create_task(self._keep(), name=self.spec.name)

    def start_later(self) -> None:
        """Start in the background, with the same backoff as a restart."""
        self.state = KeptState.STARTING
        self._task = asyncio.create_task(self._start_and_keep(), name=self.spec.name)

    async def wait_up(self) -> None:
        """Return when the process serves. Raises BadInput with the reason when it does not come back."""
        deadline = time.monotonic() + WAIT_UP_S
        while self.state != KeptState.UP:
            if time.monotonic() > deadline:
                raise BadInput(f"{self.spec.name} is {self.state}: {self.detail or f'see {self.spec.log}'}")
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Stop keeping the process, then end it: the stop signal, a grace period, SIGKILL."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        await self._terminate()
        self.state = KeptState.DOWN

    def pids(self) -> set[int]:
        """Return the pids that this object reaps, including that of a process that has just died."""
        started = {self._popen.pid} if self._popen is not None else set[int]()
        return started | ({self.process.pid} if self.process is not None else set[int]())

    def describe(self) -> dict[str, Any]:
        """Return the fields of ``ProcessStatus``."""
        return {
            "name": self.spec.name,
            "state": str(self.state),
            "pid": self.process.pid if self.process else None,
            "ports": list(self.spec.ports),
            "restarts": self.num_restarts,
            "detail": self.detail,
            "log": str(self.spec.log),
        }

    async def _start_and_keep(self) -> None:
        if await self._adopt():
            self.state = KeptState.UP
        else:
            await self._revive()
        await self._keep()

    async def _keep(self) -> None:
        while True:
            while self._is_running():
                await asyncio.sleep(WATCH_S)
            self.num_restarts += 1
            self._note_death(f"died {_exit_of(self._popen)}")
            await self._revive()

    async def _revive(self) -> None:
        """Start the process again and again, with backoff, until it serves."""
        while True:
            if self._deaths:
                now = time.monotonic()
                paused = self._policy.is_open(self._deaths, now)
                self.state = KeptState.PAUSED if paused else KeptState.RESTARTING
                await asyncio.sleep(self._policy.delay_s(self._deaths, now))
            try:
                await self._spawn()
                await self._until_healthy()
            except (BadInput, OSError) as error:
                self._note_death(str(error))
                await self._terminate()
                continue
            return

    def _note_death(self, detail: str) -> None:
        now = time.monotonic()
        self._deaths = [*(at for at in self._deaths if now - at <= self._policy.window_s), now]
        self.detail = detail
        self.process = None
        _log(f"{self.spec.name}: {detail}")

    async def _adopt(self) -> bool:
        """Adopt a living process of an earlier keeper, or end it if it was started differently."""
        entry = self._ledger.alive(self.spec.name)
        if entry is None:
            return False
        self.process = entry.process
        if entry.fingerprint == self.spec.fingerprint:
            _log(f"{self.spec.name}: adopted pid {entry.process.pid}")
            return True
        await self._terminate()
        return False

    async def _spawn(self) -> None:
        """Start the process and enter it into the ledger. Raises BadInput when one of its ports is taken."""
        for port in self.spec.ports:
            require_free(port, self.spec.name)
        await asyncio.to_thread(self.spec.prepare)
        path = self.spec.log
        if path.exists() and path.stat().st_size > LOG_BYTES:
            path.replace(path.with_suffix(".log.old"))
        user = self.spec.credentials
        with path.open("ab") as log:
            self._popen = subprocess.Popen(
                self.spec.command,
                cwd=self.spec.cwd,
                env={**os.environ, **self.spec.environment},
                user=user.user,
                group=user.group,
                extra_groups=user.extra_groups,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # out of reach of Ctrl-C, and of reap_orphans
            )
        self.process = identify(self._popen.pid)
        if self.process is not None:
            entry = Entry(process=self.process, fingerprint=self.spec.fingerprint)
            self._ledger.put(self.spec.name, entry)

    async def _until_healthy(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not await asyncio.to_thread(self.spec.healthy):
            if not self._is_running():
                raise BadInput(
                    f"{self.spec.name} ended while starting {_exit_of(self._popen)}: see {self.spec.log}"
                )
            if time.monotonic() > deadline:
                raise BadInput(
                    f"{self.spec.name} did not answer in {START_LIMIT_S:.0f} s: see {self.spec.log}"
                )
            await asyncio.sleep(0.05)
        await asyncio.to_thread(self.spec.started)
        self.state, self.detail = KeptState.UP, None

    def _is_running(self) -> bool:
        if self._popen is not None:
            return self._popen.poll() is None  # also reaps it
        return self.process is not None and is_alive(self.process)

    async def _terminate(self) -> None:
        if self.process is not None:
            send_signal(self.process, self.spec.stop_signal)
            if not await self._ended_within(self.spec.stop_grace_s):
                send_signal(self.process, signal.SIGKILL)
                await self._ended_within(KILL_S)
        self._ledger.remove(self.spec.name)
        self.process = self._popen = None

    async def _ended_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._is_running():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True


def _exit_of(popen: subprocess.Popen[bytes] | None) -> str:
    if popen is None or popen.returncode is None:
        return "without an exit status"
    if popen.returncode < 0:
        return f"of {signal.Signals(-popen.returncode).name}"
    return f"with exit status {popen.returncode}"


def _log(line: str) -> None:
    """Write to stderr, which is the keeper's own log."""
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}", file=sys.stderr, flush=True)
