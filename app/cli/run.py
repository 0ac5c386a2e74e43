"""``gyre run`` and ``gyre stop``."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

from app import stack
from app.cli import follow_run, show, start_run, workflow_client
from app.cli.output import AsJson, print_json, stderr
from app.cli.reading import reading, reading_run, run_name, summary_of
from db import run_state
from db.queries import RunSummary
from gyre.contracts.ids import RunId
from gyre.contracts.lifecycle import RunStatus
from gyre.settings.services import Services
from gyre.settings.state import state_dir

STOP_S = 20.0
"""Time that cancelled workflows get to finish what they are doing before they are terminated."""


def run(
    file: Annotated[Path, typer.Argument(help="The run file (TOML).")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and start nothing.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return as soon as the run has started.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run that exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start the run of a run file and show its progress until it ends; Ctrl-C leaves it running."""
    checked = start_run.check(file)
    name = checked.name
    if dry_run:
        counts = {"train_tasks": len(checked.train), "heldout_tasks": len(checked.heldout)}
        if as_json:
            print_json({"run": name, **counts, "resolved": checked.document.resolved()})
        else:
            print(f"run {name}: the run file, the model and {sum(counts.values())} tasks are good")
        return
    with stderr.status(f"starting run {name}"):
        services = start_run.launch(checked, state_dir(), resume=resume)
    if detach:
        if as_json:
            print_json({"run": name, "temporal_ui": services.temporal_ui})
        else:
            print(f"run {name} has started; `gyre show {name}` shows its progress")
        return
    status = _watch(services, name, checked.document.run.updates)
    follow_run.settle(state_dir(), name, services, status)
    _report_end(services, name, as_json)


def _watch(services: Services, name: RunId, num_updates: int) -> RunStatus:
    """Show progress from Postgres until the run has ended; return the status it ended with."""
    try:
        with Live(Text(""), console=stderr, refresh_per_second=2, transient=True) as live:

            def poll() -> RunStatus:
                with reading(services) as session:
                    summary = summary_of(session, name)
                live.update(Text(progress_line(summary, num_updates)))
                return RunStatus(summary.status)

            return follow_run.follow(services, name, poll)
    except KeyboardInterrupt:
        print(f"gyre: run {name} keeps running; `gyre stop {name}` stops it", file=sys.stderr)
        raise typer.Exit(0) from None


def progress_line(summary: RunSummary, num_updates: int) -> str:
    """Describe in one line the status, updates, last batch's reward, and rollouts of a run."""
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
    """Stop a run: cancel its workflows and end its processes. `gyre run FILE --resume` resumes it."""
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
