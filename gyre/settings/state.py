"""Location of the embedded services' data and of the runs' files on this machine."""

import os
from pathlib import Path


def state_dir() -> Path:
    """Return ``$GYRE_STATE_DIR``, or ``.gyre`` in the current directory, made absolute. It need not exist."""
    return Path(os.environ.get("GYRE_STATE_DIR") or ".gyre").absolute()
