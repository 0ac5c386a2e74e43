"""The command group: a command's module is imported when the command is called, never for ``gyre --help``."""

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gyre.contracts.errors import BadInput, GyreError

COMMANDS = {
    "demo": ("app.demo.command", "train a small policy on this machine, start to end"),
    "up": ("app.cli.service_commands", "start the embedded services"),
    "down": ("app.cli.service_commands", "stop all that was started here; no data is lost"),
    "ps": ("app.cli.service_commands", "list the services and the processes of runs"),
    "run": ("app.cli.run", "start or resume the run of a run file"),
    "stop": ("app.cli.run", "stop a run; `gyre run FILE --resume` resumes it"),
    "runs": ("app.cli.show", "list all runs"),
    "show": ("app.cli.show", "show a run: status, account, dispositions, checks"),
    "groups": ("app.cli.show", "list the query groups of a run"),
    "rollouts": ("app.cli.show", "list the rollouts of a run"),
    "calls": ("app.cli.call_table", "list the model calls of a rollout"),
    "tree": ("app.cli.tree_drawing", "draw the token tree of a rollout"),
    "bench": ("app.cli.bench", "measure a timing claim: tree, gateway"),
    "audit": ("app.audit.command", "recount a run from its rows, weights and histories"),
}
"""Name -> (module, help). The function in the module has the command's name."""
FAILED, BAD_INPUT = 1, 2


class LazyGroup(TyperGroup):
    """Click's LazyGroup pattern on Typer's group, and the one place where errors become exit codes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Typer suggests the nearest of these names for one that is mistyped; it reads no value.
        self.commands = dict.fromkeys(COMMANDS)

    def list_commands(self, ctx: typer.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:
        """Import the command; None where there is no such name."""
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command = typer.Typer(add_completion=False, rich_markup_mode=None)
        command.command(cmd_name)(getattr(importlib.import_module(module), cmd_name))
        return typer.main.get_command(command)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:
        """List the commands from the table above: Typer would import each for its docstring."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in COMMANDS.items()])

    def invoke(self, ctx: typer.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GyreError as error:
            typer.echo(f"gyre: {error}", err=True)
            raise typer.Exit(BAD_INPUT if isinstance(error, BadInput) else FAILED) from None
        except (KeyboardInterrupt, typer.Abort):
            typer.echo("gyre: interrupted", err=True)
            raise typer.Exit(FAILED) from None


gyre = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Rich's help would load rich and, for its table of commands, every command.
    rich_markup_mode=None,
    no_args_is_help=True,
    subcommand_metavar="COMMAND [OPTIONS]",
    options_metavar="",
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog="State is kept in ./.gyre, or in $GYRE_STATE_DIR where that is set.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from gyre import __version__

        typer.echo(f"gyre {__version__}")
        raise typer.Exit


@gyre.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Train agents online by reinforcement learning; `gyre COMMAND --help` explains a command."""
