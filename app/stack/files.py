"""Paths of a state directory, and files that are replaced atomically."""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gyre.contracts.errors import BadInput
from gyre.settings.problems import first_problem

M = TypeVar("M", bound=BaseModel)
SOCKET_PATH_BYTES = 100
"""``sun_path`` holds 108 bytes; the rest is left for suffixes."""


@dataclass(frozen=True)
class StateDir:
    """``.gyre``: one keeper, one set of services, any number of runs."""

    root: Path

    @classmethod
    def at(cls, path: Path) -> "StateDir":
        """Return the state directory at ``path``, which need not exist. Raises BadInput if it never can."""
        root = path.absolute()
        try:
            root.exists()
        except OSError as error:
            raise BadInput(f"state directory {root}: {error.strerror}") from None
        return cls(root)

    @property
    def services(self) -> Path:
        return self.root / "services.json"

    @property
    def processes(self) -> Path:
        return self.root / "processes.json"

    @property
    def lock(self) -> Path:
        return self.root / "keeper.lock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def temporal(self) -> Path:
        return self.root / "temporal"

    @property
    def s3(self) -> Path:
        return self.root / "s3"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    def run(self, name: str) -> Path:
        return self.runs / name

    @property
    def control_socket(self) -> Path:
        return short_socket(self.root / "keeper.sock")

    def make(self) -> None:
        """Create the directories. Raises BadInput if they cannot be created or written."""
        try:
            for folder in (self.root, self.logs, self.temporal, self.s3, self.runs):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"state directory {self.root}: {error.strerror}") from None
        if not os.access(self.root, os.W_OK):
            raise BadInput(f"state directory {self.root} cannot be written")


def short_socket(path: Path) -> Path:
    """Return ``path``, or a path in a private temporary folder if it is too long for a Unix socket."""
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"gyre-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise BadInput(f"{folder} belongs to another user, so no socket can be created there")
    return folder / path.name


def write_private(path: Path, text: str) -> None:
    """Replace ``path`` atomically, with mode 0600 because it holds credentials."""
    # In the same folder, because a rename is atomic only within a file system; mkstemp sets mode 0600.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(name, path)


def read_record(kind: type[M], path: Path) -> M | None:
    """Read a JSON record; return None if the file does not exist. Raises BadInput if it is damaged."""
    try:
        return kind.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise BadInput(f"{path} cannot be read: {first_problem(error)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
