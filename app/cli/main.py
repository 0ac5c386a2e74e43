"""Process entry of ``gyre``; loads nothing but the standard library until Ctrl-C is handled."""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 the run failed or Ctrl-C, 2 bad usage or configuration."""
    try:
        from app.cli.commands import gyre

        gyre(args=arguments, prog_name="gyre")
    except KeyboardInterrupt:  # during the import, which takes a moment; later ones are the group's
        print("gyre: interrupted", file=sys.stderr)
        sys.exit(1)


def program() -> None:
    """Run ``main`` as a process, skipping the interpreter's finalization once Temporal's client was loaded.

    The client's native threads may enter the interpreter while it finalizes, which was seen to abort a
    command that had done its work (PyGILState_Release while finalizing).
    """
    code: str | int | None = 0
    try:
        main()
    except SystemExit as left:
        code = left.code
    if "temporalio" not in sys.modules:
        sys.exit(code)
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    program()
