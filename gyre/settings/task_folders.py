"""Task folders in Harbor's format: ``instruction.md``, ``task.toml``, ``environment/``, ``tests/test.sh``."""

import hashlib
import os
import tomllib
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from gyre.contracts.errors import BadInput


class TaskFolder(BaseModel):
    """One task. ``environment/`` fills the workspace at the start, and ``tests/`` scores it at the end."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    path: Path
    sha256: str
    """SHA-256 of the files: their paths, executable bits and contents."""


def load_task(path: Path) -> TaskFolder:
    """Read one task folder. Raises BadInput if it is not one."""
    if not path.is_dir():
        raise BadInput(f"task {path}: no such folder")
    for needed in ("instruction.md", "tests/test.sh"):
        if not (path / needed).is_file():
            raise BadInput(f"task {path}: it has no {needed}")
    try:
        (path / "instruction.md").read_text()  # must be text, because a harness gets it as its prompt
        if (path / "task.toml").exists():
            tomllib.loads((path / "task.toml").read_text())
        return TaskFolder(name=path.resolve().name, path=path.resolve(), sha256=folder_sha256(path))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"task {path}: task.toml cannot be read: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"task {path}: {error}") from None


def load_tasks(folder: Path) -> list[TaskFolder]:
    """Read all task folders in a folder, by name. Raises BadInput if there is none or one is invalid."""
    if not folder.is_dir():
        raise BadInput(f"tasks {folder}: no such folder")
    paths = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not paths:
        raise BadInput(f"tasks {folder}: it holds no task folder")
    return [load_task(path) for path in paths]


def folder_sha256(folder: Path) -> str:
    """Return the SHA-256 of a folder's files, which does not depend on their times and owners."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            kind, content = b"link", str(path.readlink()).encode()
        elif path.is_file():
            kind = b"program" if path.stat().st_mode & 0o100 else b"file"
            content = path.read_bytes()
        else:
            continue
        name = str(path.relative_to(folder)).encode()
        digest.update(b"%b %d %d\n" % (kind, len(name), len(content)) + name + content)
    return digest.hexdigest()


def current_sha256(folder: Path) -> str:
    """Return ``folder_sha256``, but read the files again only if one of them was touched."""
    return _sha256_at(folder, _fingerprint(folder))


@lru_cache(maxsize=4096)
def _sha256_at(folder: Path, fingerprint: str) -> str:
    return folder_sha256(folder)


def _fingerprint(folder: Path) -> str:
    """Return a digest of the names, sizes, rights and times of a folder's files."""
    digest = hashlib.sha256()
    for root, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files + folders):
            path = os.path.join(root, name)
            status = os.lstat(path)
            facts = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            digest.update(f"{path!r} {facts}\n".encode())
    return digest.hexdigest()
