"""``gyre COMMAND``. Each command lives in a module of its own that is imported when it is called."""

import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches

COMMANDS = {
    "demo": ("app.demo.command", "train a small policy on this machine, start to end"),
    "up": ("app.cli.service_commands", "start the embedded services"),
    "down": ("app.cli.service_commands", "stop everything that was started here; no data is lost"),
    "ps": ("app.cli.service_commands", "services and processes of runs"),
    "run": ("app.cli.run", "start or resume the run of a run file"),
    "stop": ("app.cli.run", "stop a run for good or until `run --resume`"),
    "runs": ("app.cli.show", "all runs"),
    "show": ("app.cli.show", "one run: status, account, dispositions, checks"),
    "groups": ("app.cli.show", "the query groups of a run"),
    "rollouts": ("app.cli.show", "the rollouts of a run"),
    "calls": ("app.cli.rollout", "the model calls of a rollout"),
    "tree": ("app.cli.rollout", "the token tree of a rollout"),
    "bench": ("app.cli.bench", "measure a timing claim: tree, gateway"),
    "audit": ("app.audit.command", "recount a run from its rows, weights and histories"),
}
"""Name -> (module, help). The function has the command's name."""
DONE, FAILED, BAD_INPUT = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 the run failed or Ctrl-C, 2 bad usage or bad configuration."""
    try:
        _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # while the command was imported, say, which takes seconds
        print("gyre: interrupted", file=sys.stderr)
        sys.exit(FAILED)


def _run(given: list[str]) -> None:
    if not given or given[0] in ("-h", "--help"):
        print(usage())
        sys.exit(DONE if given else BAD_INPUT)
    if given[0] == "--version":
        from gyre import __version__

        print(f"gyre {__version__}")
        sys.exit(DONE)
    if given[0] not in COMMANDS:
        close = get_close_matches(given[0], COMMANDS, n=1)
        hint = f"; did you mean `gyre {close[0]}`?" if close else " (allowed: see `gyre --help`)"
        print(f"gyre: no command '{given[0]}'{hint}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    _call(given[0], given[1:])


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: gyre COMMAND [OPTIONS]      (`gyre COMMAND --help` tells them; most take --json)",
            "",
            *lines,
            "",
            "State is kept in ./.gyre, or where $GYRE_STATE_DIR says.",
        ]
    )


def _call(name: str, arguments: list[str]) -> None:
    """Import the command and run it; the one place where errors become exit codes."""
    import typer

    from gyre.contracts.errors import BadInput, GyreError

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(_interruptible(getattr(importlib.import_module(COMMANDS[name][0]), name)))
    try:
        app(args=arguments, prog_name=f"gyre {name}")
    except GyreError as error:
        print(f"gyre: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT if isinstance(error, BadInput) else FAILED)


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with Ctrl-C as an error of ours: typer would make it an exit code of its own."""
    import typer

    from gyre.contracts.errors import GyreError

    @functools.wraps(command)
    def run(*arguments: object, **options: object) -> None:
        try:
            command(*arguments, **options)
        except (KeyboardInterrupt, typer.Abort):
            raise GyreError("interrupted") from None

    return run


def program() -> None:
    """``main`` as a process: leaves without finalising the interpreter where Temporal's client was used.

    The client's native threads may still enter the interpreter then, which was seen to abort a command
    that had done its work (PyGILState_Release while finalising).
    """
    code: str | int | None = DONE
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
