"""Programs that wheels install next to the interpreter."""

import shutil
import sys
from pathlib import Path

from gyre.contracts.errors import BadInput


def program(name: str) -> str:
    """Return the absolute path of a program of this environment. Raises BadInput if it is missing."""
    installed = Path(sys.executable).parent / name
    found = str(installed) if installed.exists() else shutil.which(name)
    if found is None:
        raise BadInput(f"the program {name} is missing: run `make setup`")
    return found
