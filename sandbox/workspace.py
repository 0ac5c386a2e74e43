"""The workspace of an attempt: made once from the task's environment, and compared with it later."""

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
"""Files of ``environment/`` that say how to build an image; they are not part of the work."""


@dataclass(frozen=True)
class Provisioned:
    num_files: int
    num_bytes: int


def provision(environment: Path, directory: Path, *, limit_s: float = math.inf) -> Provisioned:
    """Make ``directory/workspace`` as a copy of ``environment`` (empty if there is none), once.

    Called again it changes nothing: a harness may be at work. Raises ProvisionFailed, also when it takes
    longer than ``limit_s``.
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
            # Last: only a complete workspace has a record, and one with a record is never made again.
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
    """``{relative path: (bytes, sha256)}`` of regular files and of links (the text they hold).

    Raises the deadline's error when it is over.
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
            state[name] = (path.stat().st_size, _sha256(path))
    return state


def walk(folder: Path) -> list[Path]:
    """Everything below a folder, links not followed; folders made unreadable are opened first."""
    found: list[Path] = []
    for root, folders, files in os.walk(folder, onerror=_raise):
        # The owner may take its own rights away; without root the walk would silently miss the rest.
        for name in folders:
            path = os.path.join(root, name)
            if not os.path.islink(path) and not os.access(path, os.R_OK | os.X_OK):
                os.chmod(path, 0o700)
        found += [Path(root, name) for name in folders + files]
    return found


def _raise(error: OSError) -> None:
    raise error


def changed_files(before: dict[str, tuple[int, str]], after: dict[str, tuple[int, str]]) -> int:
    """Files added, changed or gone."""
    return sum(before.get(name) != after.get(name) for name in before.keys() | after.keys())


def provisioned_state(directory: Path) -> dict[str, tuple[int, str]]:
    """What ``provision`` put there."""
    document = json.loads((directory / "provisioned.json").read_text())
    return {name: (size, digest) for name, (size, digest) in document.items()}


def remove(folder: Path) -> None:
    """Delete a tree that a sandbox's user may have made unreadable. Missing is fine."""
    if not folder.exists():
        return
    if os.geteuid() != 0:
        walk(folder)
    shutil.rmtree(folder, onerror=_open_and_retry)


def _open_and_retry(function: Callable[..., object], path: str, _info: object) -> None:
    if not os.path.lexists(path):
        return
    os.chmod(os.path.dirname(path), 0o700)
    function(path)


def _sha256(path: Path) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
