"""Where this machine keeps the embedded services' data and the processes of its runs."""

import os
from pathlib import Path


def state_dir() -> Path:
    """``$GYRE_STATE_DIR``, or ``.gyre`` in the current directory; absolute, perhaps not made yet."""
    return Path(os.environ.get("GYRE_STATE_DIR") or ".gyre").absolute()
