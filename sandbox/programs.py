"""Find a harness's program on this machine and the folders that a sandbox must mount to run it."""

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from gyre.contracts.errors import BadInput

LINE_BYTES = 5000
"""Longest first line that is read; a path has at most 4096 bytes."""
ROOT = Path("/")


@dataclass(frozen=True)
class Program:
    """A program at ``path`` below ``folder``; a script also needs its interpreter's folders."""

    path: Path
    folder: Path
    node: Path | None = None
    """The prefix of a Node installation."""
    python: tuple[Path, ...] = ()
    """A virtual environment and its base installation, which work only at their own paths."""


def find(wanted: str, whose: str, advice: str) -> Program:
    """Return a program by name or path, and what it needs. Raises BadInput that names ``whose`` it is."""
    found = shutil.which(wanted)
    if found is None:
        raise BadInput(f"{whose}: no program {wanted!r} ({advice})")
    path = Path(found).resolve()
    interpreter = _interpreter(path)
    if interpreter is None:
        return Program(path, path.parent)
    if interpreter.name != "node":
        return Program(path, path.parent, python=_python(interpreter, whose))
    node = shutil.which("node")
    if node is None:
        raise BadInput(f"{whose} needs Node: no program 'node' on PATH")
    # The folder of every package it may load: the outermost node_modules, else its own folder.
    modules = (above for above in reversed(path.parents) if above.name == "node_modules")
    return Program(path, next(modules, path.parent), node=Path(node).resolve().parent.parent)


def _interpreter(program: Path) -> Path | None:
    """Return the Node or Python that a script's first line names; None for any other program.

    If the path is too long for a first line or has a space, pip lets a shell start it in the second line,
    ``'''exec' "/the path/python" "$0" "$@"``, which Python reads as the beginning of a string.
    """
    with program.open("rb") as file:
        first, second = file.readline(LINE_BYTES), file.readline(LINE_BYTES)
    if not first.startswith(b"#!"):
        return None
    words = first[2:].decode(errors="replace").split()
    if second.startswith(b"'''exec' "):
        words = shlex.split(second.decode(errors="replace"))[1:2]
    named = [Path(word) for word in words]
    return next((word for word in named if word.name == "node" or word.name.startswith("python")), None)


def _python(interpreter: Path, whose: str) -> tuple[Path, ...]:
    """Return the folders that a Python needs; none for ``/usr/bin/env python3``, the sandbox's own.

    Raises BadInput if the sandbox would have to see all of this machine.
    """
    if not interpreter.is_absolute():
        return ()
    prefix = interpreter.parent.parent
    if prefix == ROOT:  # /bin is a link to /usr/bin nearly everywhere
        prefix = interpreter.parent.resolve().parent
    found = prefix, interpreter.resolve().parent.parent
    if ROOT in found:
        raise BadInput(f"{whose}: its interpreter {interpreter} is installed in /, which no sandbox may see")
    return found
