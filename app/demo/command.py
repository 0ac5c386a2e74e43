"""``gyre demo``: make tasks and a model, warm it up, train it through the whole system, report."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from app.cli import start_run
from app.cli.output import AsJson, print_json, stderr
from app.cli.reading import reading
from app.demo.prepare import Request, prepare
from app.demo.recipe import UPDATES
from app.demo.report import Report, document, report
from app.demo.screen import Screen, print_report
from db import demo_report, queries
from gyre.contracts.errors import BadInput, GyreError
from gyre.contracts.ids import RunId
from gyre.contracts.lifecycle import RunStatus
from gyre.settings.services import Services
from gyre.settings.state import state_dir

Steps = Annotated[int, typer.Option(min=1, max=1000, help="Updates of the policy.")]
Seed = Annotated[int, typer.Option(min=0, help="Of words, weights, warm-up and sampling.")]
Harness = Annotated[Literal["tiny", "claude-code"], typer.Option(help="The agent program.")]
Control = Annotated[
    Literal["none", "permuted"],
    typer.Option(help="permuted: rewards are shuffled, so nothing may be learnt."),
]


def demo(
    steps: Steps = UPDATES,
    seed: Seed = 0,
    harness: Harness = "tiny",
    control: Control = "none",
    as_json: AsJson = False,
) -> None:
    """Train a small policy on this machine, start to end, and show what it learnt on held-out tasks."""
    require_harness(harness)
    started = time.monotonic()
    request = Request(
        name=run_name(seed, control), seed=seed, updates=steps, control=control, harness=harness
    )
    with Screen(stderr) as screen:
        services = _start(request, screen)
        status = _follow(services, request, screen)
    found = _report(services, request, time.monotonic() - started)
    start_run.settle(state_dir(), RunId(request.name), services, status)
    where = places(services, request.name)
    if as_json:
        print_json(document(found, where))
    else:
        print_report(Console(highlight=False), found, where)
    if found.summary.status != RunStatus.FINISHED:
        raise typer.Exit(1)


def require_harness(harness: str) -> None:
    """Raises BadInput for a harness that the demo's policy has not been taught."""
    if harness != "tiny":
        raise BadInput(
            f"--harness {harness}: the demo's policy of 0.8 M parameters knows the tool of 'tiny' alone "
            "(allowed: tiny); give a run file with a model of your own to `gyre run` for this harness"
        )


def run_name(seed: int, control: str) -> str:
    """Such as ``demo-s3-142501``; the time keeps names apart."""
    mark = "" if control == "none" else f"-{control}"
    return f"demo-s{seed}{mark}-{time.strftime('%H%M%S')}"


def _start(request: Request, screen: Screen) -> Services:
    folder = state_dir() / "demo" / request.name
    screen.show("tasks and model", 0, 1)
    prepare(
        folder,
        request,
        progress=lambda done, total, loss: screen.show("warm-up", done, total, f"loss {loss:.3f}"),
    )
    checked = start_run.check(folder / "run.toml")
    screen.show("services start", 0, 1)
    return start_run.launch(checked, state_dir())


def _follow(services: Services, request: Request, screen: Screen) -> RunStatus:
    """Show the run until it ends; the status it ended with. Ctrl-C leaves it running."""

    def look() -> RunStatus:
        with reading(services) as session:
            summary = _summary(session, request.name)
            parts = demo_report.rollouts(session, request.name)
        screen.show_run(summary, parts, request.updates)
        return RunStatus(summary.status)

    try:
        return start_run.follow(services, RunId(request.name), look)
    except KeyboardInterrupt:
        stderr.print(f"gyre: run {request.name} goes on; `gyre stop {request.name}` ends it")
        raise typer.Exit(1) from None


def _summary(session: queries.Session, run: str) -> queries.RunSummary:
    summary = queries.summarise(session, run)
    if summary is None:
        raise GyreError(f"run '{run}' is gone from Postgres")
    return summary


def _report(services: Services, request: Request, seconds: float) -> Report:
    with reading(services) as session:
        return report(
            _summary(session, request.name),
            demo_report.heldout_outcomes(session, request.name),
            queries.mean_rewards(session, request.name),
            demo_report.trained_roles(session, request.name),
            seed=request.seed,
            control=request.control,
            seconds=seconds,
        )


def places(services: Services, run: str) -> dict[str, str]:
    """Where to look next."""
    found = {"temporal_ui": services.temporal_ui} if services.temporal_ui else {}
    folder: Path = state_dir() / "demo" / run
    return {
        **found,
        "files": str(folder),
        "show": f"gyre show {run}",
        "rollouts": f"gyre rollouts {run}",
        "audit": f"gyre audit {run}",
    }
