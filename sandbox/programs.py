"""Where a harness's program is on this machine, and what a sandbox must see for it to run."""

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from gyre.contracts.errors import BadInput

LINE_BYTES = 5000
"""A path has 4096 at most."""
ROOT = Path("/")


@dataclass(frozen=True)
class Program:
    """``path`` below ``folder``; a script also needs its interpreter's folders."""

    path: Path
    folder: Path
    node: Path | None = None
    """The prefix of a Node installation."""
    python: tuple[Path, ...] = ()
    """A virtual environment and the installation under it, which work at their own paths only."""


def find(wanted: str, whose: str, advice: str) -> Program:
    """The program with that name or path, and what it needs. Raises BadInput, naming ``whose`` it is."""
    found = shutil.which(wanted)
    if found is None:
        raise BadInput(f"{whose}: no program {wanted!r} ({advice})")
    path = Path(found).resolve()
    interpreter = _interpreter(path)
    if interpreter is None:
        return Program(path, path.parent)
    if interpreter.name == "node":
        return Program(path, _packages(path), node=_node(whose))
    return Program(path, path.parent, python=_python(interpreter, whose))


def _interpreter(program: Path) -> Path | None:
    """What a script's first line names, Node or a Python; None for a native program or a shell script.

    Where a path is too long for a first line or has a space, pip has a shell start it in the second one:
    ``'''exec' "/the path/python" "$0" "$@"``, which Python reads as the beginning of a text.
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


def _packages(program: Path) -> Path:
    """The folder of all packages it may load: the outermost ``node_modules``, else its own folder."""
    return next(
        (above for above in reversed(program.parents) if above.name == "node_modules"), program.parent
    )


def _node(whose: str) -> Path:
    node = shutil.which("node")
    if node is None:
        raise BadInput(f"{whose} needs Node: no program 'node' on PATH")
    return Path(node).resolve().parent.parent


def _python(interpreter: Path, whose: str) -> tuple[Path, ...]:
    """Nothing for ``/usr/bin/env python3``: that is the sandbox's own. Raises BadInput where a sandbox would
    have to see all of this machine."""
    if not interpreter.is_absolute():
        return ()
    prefix = interpreter.parent.parent
    if prefix == ROOT:  # /bin is a link to /usr/bin nearly everywhere
        prefix = interpreter.parent.resolve().parent
    found = prefix, interpreter.resolve().parent.parent
    if ROOT in found:
        raise BadInput(f"{whose}: its interpreter {interpreter} is installed in /, which no sandbox may see")
    return found
