"""Description of a process to keep: how to start it, check that it serves, and stop it."""

import hashlib
import pwd
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gyre.contracts.json_text import canonical_json


def no_check() -> bool:
    return True


def no_preparation() -> None:
    return None


class Credentials(NamedTuple):
    """User to run a program as, by subprocess' argument names; all None for the current user."""

    user: str | None
    group: int | None
    extra_groups: list[int] | None


def credentials(user: str | None) -> Credentials:
    """Return the credentials of a system user, with its own group and no others."""
    if user is None:
        return Credentials(None, None, None)
    return Credentials(user, pwd.getpwnam(user).pw_gid, [])


@dataclass(frozen=True)
class ProcessSpec:
    """One process that the keeper keeps alive."""

    name: str
    """``postgres``, or ``<run>/gateway`` for a process of a run."""
    command: tuple[str, ...]
    cwd: Path
    log: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """Variables added to the keeper's own environment."""
    inputs: str = ""
    """Contents of the files it reads at its start, so that a change of them restarts the process."""
    user: str | None = None
    """System user to run as; only root can set it."""
    ports: tuple[int, ...] = ()
    healthy: Callable[[], bool] = no_check
    """Whether the process serves. Called in a thread, so it may block for a second or two."""
    prepare: Callable[[], None] = no_preparation
    """Called before each start."""
    started: Callable[[], None] = no_preparation
    """Called each time the process has become healthy."""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 10.0

    @property
    def credentials(self) -> Credentials:
        return credentials(self.user)

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides what runs: only a process of an equal fingerprint is adopted."""
        parts = [self.command, str(self.cwd), self.environment, self.user, self.inputs]
        return hashlib.sha256(canonical_json(parts, spaced=True).encode()).hexdigest()
