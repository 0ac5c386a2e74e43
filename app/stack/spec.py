"""What the keeper has to know about a process to start it, tell that it is well, and stop it."""

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
    """Who a program runs as; all None: whoever starts it. The names are those of subprocess."""

    user: str | None
    group: int | None
    extra_groups: list[int] | None


def credentials(user: str | None) -> Credentials:
    """A system user with its own group and no others."""
    if user is None:
        return Credentials(None, None, None)
    return Credentials(user, pwd.getpwnam(user).pw_gid, [])


@dataclass(frozen=True)
class ProcessSpec:
    name: str
    """``postgres``, or ``<run>/gateway`` for a process of a run."""
    command: tuple[str, ...]
    cwd: Path
    log: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """Added to the keeper's own."""
    inputs: str = ""
    """What it reads at its start, so that a change of it makes another process."""
    user: str | None = None
    """System user to run as, for root only."""
    ports: tuple[int, ...] = ()
    healthy: Callable[[], bool] = no_check
    """Whether it serves; may block for a second or two, called in a thread."""
    prepare: Callable[[], None] = no_preparation
    """Run before each start."""
    started: Callable[[], None] = no_preparation
    """Run each time it has become healthy."""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 10.0

    @property
    def credentials(self) -> Credentials:
        return credentials(self.user)

    @property
    def fingerprint(self) -> str:
        """A process that was started from the same fingerprint can be adopted."""
        parts = [self.command, str(self.cwd), self.environment, self.user, self.inputs]
        return hashlib.sha256(canonical_json(parts, spaced=True).encode()).hexdigest()
