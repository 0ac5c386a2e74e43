"""Programs that wheels install beside the interpreter."""

import shutil
import sys
from pathlib import Path

from gyre.contracts.errors import BadInput


def program(name: str) -> str:
    """Absolute path of a program of this environment. Raises BadInput if it is missing."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise BadInput(f"the program {name} is missing: run `make setup`")
    return found
