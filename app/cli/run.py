"""``gyre run`` and ``gyre stop``."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

from app import stack
from app.cli import show, start_run, workflow_client
from app.cli.output import AsJson, print_json, stderr
from app.cli.reading import reading, reading_run, run_name
from db import queries, run_state
from db.queries import RunSummary
from gyre.contracts.errors import GyreError
from gyre.contracts.ids import RunId
from gyre.contracts.lifecycle import RunStatus
from gyre.settings.services import Services
from gyre.settings.state import state_dir

STOP_S = 20.0
"""For the run's workflows to end what they have in hand after a cancellation."""


def run(
    file: Annotated[Path, typer.Argument(help="The run file (TOML).")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, make nothing.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return when the run has started.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Take up a run that exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start the run of a run file and show its progress until it ends; Ctrl-C leaves it running."""
    checked = start_run.check(file)
    if dry_run:
        _report_dry_run(checked, as_json)
        return
    with stderr.status(f"starting run {checked.name}"):
        services = start_run.launch(checked, state_dir(), resume=resume)
    if detach:
        if as_json:
            print_json({"run": checked.name, "temporal_ui": services.temporal_ui})
        else:
            print(f"run {checked.name} has started: gyre show {checked.name}")
        return
    status = _watch(services, checked.name, checked.document.run.updates)
    start_run.settle(state_dir(), checked.name, services, status)
    _report_end(services, checked.name, as_json)


def _report_dry_run(checked: start_run.CheckedRun, as_json: bool) -> None:
    counts = {"train_tasks": len(checked.train), "heldout_tasks": len(checked.heldout)}
    if as_json:
        print_json({"run": checked.name, **counts, "resolved": checked.document.resolved()})
    else:
        print(f"run {checked.name}: the file, the model and {sum(counts.values())} tasks are good")


def _watch(services: Services, name: RunId, num_updates: int) -> RunStatus:
    """Show progress from Postgres until the run has ended; the status it ended with."""
    try:
        with Live(Text(""), console=stderr, refresh_per_second=2, transient=True) as live:

            def look() -> RunStatus:
                summary = _look(services, name)
                live.update(Text(progress_line(summary, num_updates)))
                return RunStatus(summary.status)

            return start_run.follow(services, name, look)
    except KeyboardInterrupt:
        print(f"gyre: run {name} goes on; `gyre stop {name}` ends it", file=sys.stderr)
        raise typer.Exit(0) from None


def _look(services: Services, name: RunId) -> RunSummary:
    with reading(services) as session:
        summary = queries.summarise(session, name)
    if summary is None:
        raise GyreError(f"run '{name}' is gone from Postgres")
    return summary


def progress_line(summary: RunSummary, num_updates: int) -> str:
    """One line: status, updates, reward of the last batch, rollouts by disposition and in progress."""
    reward = "-" if summary.mean_reward is None else f"{summary.mean_reward:.3f}"
    counts = ", ".join(f"{count} {name}" for name, count in summary.dispositions.items())
    return (
        f"{summary.run} {summary.status}: update {summary.updates}/{num_updates}, "
        f"reward {reward}, rollouts: {counts}, {summary.running} running"
    )


def _report_end(services: Services, name: RunId, as_json: bool) -> None:
    with reading(services) as session:
        document = show.describe(session, name)
    if as_json:
        print_json(document)
    else:
        show.print_document(document)
    if document["status"] != RunStatus.FINISHED:
        reason = f": {document['failure']}" if document["failure"] else ""
        print(f"gyre: run {name} {document['status']}{reason}", file=sys.stderr)
        raise typer.Exit(1)


def stop(
    run: Annotated[str, typer.Argument(help="The run's name.")],
    as_json: AsJson = False,
) -> None:
    """Stop a run: its workflows are cancelled and its processes end. `--resume` takes it up again."""
    name = run_name(run)
    with reading_run(name):
        services = stack.services_of(state_dir(), name)
    with stderr.status(f"stopping run {name}"):
        asyncio.run(workflow_client.cancel(services, name, limit_s=STOP_S))
        stack.stop_run(state_dir(), name)
    with reading_run(name) as session:
        status = run_state.mark_stopped(session, name)
    if as_json:
        print_json({"run": name, "status": status})
    else:
        print(f"run {name}: {status}")
