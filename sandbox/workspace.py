"""The workspace of an attempt: created once from the task's environment and later compared with it."""

import hashlib
import json
import math
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gyre.contracts.errors import ProvisionFailed
from sandbox.deadline import Deadline

RECIPES = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml")
"""Files of ``environment/`` that describe an image; they are not part of the workspace."""


@dataclass(frozen=True)
class Provisioned:
    """Size of a workspace when it was created."""

    num_files: int
    num_bytes: int


def provision(environment: Path, directory: Path, *, limit_s: float = math.inf) -> Provisioned:
    """Create ``directory/workspace`` once, as a copy of ``environment`` (empty if that does not exist).

    A repeated call changes nothing, because a harness may be at work. Raises ProvisionFailed, also when it
    takes longer than ``limit_s``.
    """
    deadline = Deadline(limit_s, ProvisionFailed, f"making the workspace of {directory.name}")
    record = directory / "provisioned.json"
    try:
        if not record.exists():
            directory.mkdir(parents=True, exist_ok=True)
            fresh = directory / "workspace.new"
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.rmtree(directory / "workspace", ignore_errors=True)
            _copy(environment, fresh, deadline)
            state = json.dumps(file_state(fresh, deadline))
            fresh.rename(directory / "workspace")
            (directory / "provisioned.new").write_text(state)
            # Last: only a complete workspace has a record, and one with a record is never created again.
            (directory / "provisioned.new").rename(record)
        state = json.loads(record.read_text())
    except (OSError, shutil.Error) as error:
        raise ProvisionFailed(f"the workspace of {directory.name} could not be made: {error}") from error
    return Provisioned(len(state), sum(size for size, _ in state.values()))


def _copy(environment: Path, target: Path, deadline: Deadline) -> None:
    if not environment.is_dir():
        target.mkdir()
        return
    top = str(environment)

    def copy(source: str, to: str) -> None:
        deadline.check()
        shutil.copy2(source, to)

    shutil.copytree(
        environment,
        target,
        symlinks=True,
        copy_function=copy,
        ignore=lambda folder, names: [n for n in names if folder == top and n in RECIPES],
    )


def file_state(folder: Path, deadline: Deadline | None = None) -> dict[str, tuple[int, str]]:
    """Return ``{relative path: (bytes, sha256)}`` of regular files and of links (the text they hold).

    Raises the deadline's error once it has passed.
    """
    state: dict[str, tuple[int, str]] = {}
    for path in sorted(walk(folder)):
        if deadline is not None:
            deadline.check()
        name = os.fsencode(path.relative_to(folder)).decode(errors="backslashreplace")
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            target = os.fsencode(os.readlink(path))
            state[name] = (len(target), "link:" + hashlib.sha256(target).hexdigest())
        elif stat.S_ISREG(mode):
            # The file may have been replaced by a link or a pipe since lstat.
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                state[name] = (path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
    return state


def walk(folder: Path) -> list[Path]:
    """Return every path below a folder without following links; unreadable folders are opened first."""
    found: list[Path] = []

    def fail(error: OSError) -> None:  # os.walk's default is to skip what it cannot read
        raise error

    for root, folders, files in os.walk(folder, onerror=fail):
        # A harness may have taken away its own rights; without root the walk would fail on such a folder.
        for name in folders:
            path = os.path.join(root, name)
            if not os.path.islink(path) and not os.access(path, os.R_OK | os.X_OK):
                os.chmod(path, 0o700)
        found += [Path(root, name) for name in folders + files]
    return found


def changed_files(before: dict[str, tuple[int, str]], after: dict[str, tuple[int, str]]) -> int:
    """Return the number of files added, changed or removed."""
    return sum(before.get(name) != after.get(name) for name in before.keys() | after.keys())


def provisioned_state(directory: Path) -> dict[str, tuple[int, str]]:
    """Return the ``file_state`` of the workspace as ``provision`` created it."""
    document = json.loads((directory / "provisioned.json").read_text())
    return {name: (size, digest) for name, (size, digest) in document.items()}


def remove(folder: Path) -> None:
    """Delete a tree that a sandbox's user may have made unreadable. A missing one is no error."""
    if not folder.exists():
        return
    if os.geteuid() != 0:
        walk(folder)

    def open_and_retry(function: Callable[..., object], path: str, _info: object) -> None:
        if os.path.lexists(path):
            os.chmod(os.path.dirname(path), 0o700)
            function(path)

    shutil.rmtree(folder, onerror=open_and_retry)
