"""Capture and restore: a deterministic tar + zstd of a workspace after its last writer has ended."""

import errno
import hashlib
import os
import stat
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import zstandard

from gyre.contracts.errors import SnapshotFailed, WorkspaceUnusable
from sandbox.deadline import Deadline
from sandbox.workspace import walk

LEVEL = 3
FORMAT = 1
CHUNK_BYTES = 1 << 20
HOST_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that are the machine's fault, not the workspace's, and that may pass."""
MODE_BITS = 0o777
"""Permission bits that are kept; set-user-id and the like are dropped."""


@dataclass(frozen=True)
class Manifest:
    """Contents of an archive, and the paths it leaves out."""

    num_files: int
    """Regular files and links."""
    num_bytes: int
    """Size of the files, unpacked."""
    sha256: str
    """SHA-256 of the archive; equal workspaces give equal archives."""
    skipped: list[str]
    """``path: reason``, at most 100 of them."""
    num_skipped: int
    files: str = "captured"
    processes: str = "not captured"
    format: int = FORMAT

    def document(self) -> dict[str, Any]:
        return asdict(self)


def capture(
    workspace: Path, out: Path, *, max_bytes: int = 8 << 30, deadline: Deadline | None = None
) -> Manifest:
    """Write the archive of a workspace to ``out``. Links are kept and never followed.

    Raises WorkspaceUnusable if it is missing, cannot be read or its files claim more than ``max_bytes``,
    SnapshotFailed if this machine fails, and the deadline's error once it has passed.
    """
    if not workspace.is_dir():
        raise WorkspaceUnusable(f"there is no workspace at {workspace.name} to capture")
    skipped: list[str] = []
    num_files = num_bytes = 0
    try:
        with (
            out.open("wb") as file,
            zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).stream_writer(file) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in sorted(walk(workspace), key=os.fsencode):
                if deadline is not None:
                    deadline.check()
                entry = _entry(path, workspace)
                if entry is None:
                    skipped.append(f"{os.fsencode(path.relative_to(workspace))!r}: not a file")
                    continue
                num_bytes += entry.size
                num_files += not entry.isdir()
                if num_bytes > max_bytes:
                    raise WorkspaceUnusable(f"the workspace holds more than the {max_bytes} bytes allowed")
                _add(archive, entry, path)
    except (OSError, tarfile.TarError, zstandard.ZstdError) as error:
        of_host = isinstance(error, OSError) and error.errno in HOST_ERRORS
        kind = SnapshotFailed if of_host else WorkspaceUnusable
        raise kind(f"the workspace could not be captured: {error}") from error
    with out.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Manifest(num_files, num_bytes, digest, skipped[:100], len(skipped))


def _entry(path: Path, workspace: Path) -> tarfile.TarInfo | None:
    """Return the normalized header of a path, or None for sockets, pipes and devices."""
    status = path.lstat()
    # Owner and time keep TarInfo's zeros, so that equal workspaces give equal archives.
    entry = tarfile.TarInfo(os.fspath(path.relative_to(workspace)))
    entry.mode = stat.S_IMODE(status.st_mode) & MODE_BITS
    if stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
    elif stat.S_ISREG(status.st_mode):
        entry.size = status.st_size
    else:
        return None
    return entry


def _add(archive: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> None:
    if not entry.isreg():
        archive.addfile(entry)
        return
    if not os.access(path, os.R_OK):
        path.chmod(0o600)
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as content:
        archive.addfile(entry, content)


def restore(archive: Path, folder: Path) -> None:
    """Unpack an archive into a new or empty folder. Raises SnapshotFailed for one that is not ours.

    No archive can write outside the folder: names must be relative and without "..", existing files are not
    opened, and links are created last, when nothing is written through them any more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    links: list[tarfile.TarInfo] = []
    folders: list[tarfile.TarInfo] = []
    try:
        with (
            archive.open("rb") as file,
            zstandard.ZstdDecompressor().stream_reader(file) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|") as entries,
        ):
            for entry in entries:
                target = _inside(folder, entry.name)
                if entry.issym():
                    links.append(entry)
                elif entry.isdir():
                    target.mkdir(mode=0o700)
                    folders.append(entry)
                elif entry.isreg():
                    _write(target, entry, entries.extractfile(entry))
                else:
                    raise SnapshotFailed(f"archive entry {entry.name!r} is neither file, folder nor link")
        for entry in links:
            os.symlink(entry.linkname, _inside(folder, entry.name))
        # Deepest first, so that a folder without permissions does not hide those below it.
        for entry in reversed(folders):
            _inside(folder, entry.name).chmod(entry.mode & MODE_BITS)
    except (OSError, EOFError, tarfile.TarError, zstandard.ZstdError) as error:
        raise SnapshotFailed(f"the archive could not be restored: {error}") from error


def _inside(folder: Path, name: str) -> Path:
    parts = Path(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise SnapshotFailed(f"archive entry {name!r} would leave the folder")
    return folder.joinpath(*parts)


def _write(target: Path, entry: tarfile.TarInfo, content: IO[bytes] | None) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(target, flags, 0o600), "wb") as file:
        while content is not None and (chunk := content.read(CHUNK_BYTES)):
            file.write(chunk)
        os.fchmod(file.fileno(), entry.mode & MODE_BITS)
