"""``gyre demo``: make tasks and a model, warm the model up, train it through the whole system, report."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from app.cli import follow_run, start_run
from app.cli.output import AsJson, print_json, stderr, stdout
from app.cli.reading import reading, summary_of
from app.demo.prepare import Request, prepare
from app.demo.recipe import UPDATES
from app.demo.report import Report, document, report
from app.demo.screen import Screen, print_report
from db import demo_report, queries
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import RunId
from gyre.contracts.lifecycle import RunStatus
from gyre.settings.services import Services
from gyre.settings.state import state_dir

Steps = Annotated[int, typer.Option(min=1, max=1000, help="Number of updates of the policy.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of words, weights, warm-up and sampling.")]
Harness = Annotated[
    Literal["tiny", "claude-code"], typer.Option(help="The agent program that works on the tasks.")
]
Control = Annotated[
    Literal["none", "permuted"],
    typer.Option(help="With `permuted`, rewards are shuffled, so nothing may be learned."),
]


def demo(
    steps: Steps = UPDATES,
    seed: Seed = 0,
    harness: Harness = "tiny",
    control: Control = "none",
    as_json: AsJson = False,
) -> None:
    """Train a small policy on this machine, start to end, and show what it learned on held-out tasks."""
    require_harness(harness)
    started = time.monotonic()
    request = Request(
        name=run_name(seed, control), seed=seed, updates=steps, control=control, harness=harness
    )
    with Screen(stderr) as screen:
        services = _start(request, screen)
        status = _follow(services, request, screen)
    found = _report(services, request, time.monotonic() - started)
    follow_run.settle(state_dir(), RunId(request.name), services, status)
    where = places(services, request.name)
    if as_json:
        print_json(document(found, where))
    else:
        print_report(stdout(), found, where)
    if found.summary.status != RunStatus.FINISHED:
        raise typer.Exit(1)


def require_harness(harness: str) -> None:
    """Raise BadInput for a harness that the warm-up does not teach."""
    if harness != "tiny":
        raise BadInput(
            f"--harness {harness}: the demo's small policy knows only the tools of 'tiny' (allowed: tiny); "
            "to use this harness, give `gyre run` a run file with a model of your own"
        )


def run_name(seed: int, control: str) -> str:
    """Return a name such as ``demo-s3-142501``, which the time of day keeps distinct."""
    mark = "" if control == "none" else f"-{control}"
    return f"demo-s{seed}{mark}-{time.strftime('%H%M%S')}"


def _start(request: Request, screen: Screen) -> Services:
    folder = state_dir() / "demo" / request.name
    screen.show("making tasks and model", 0, 1)
    prepare(
        folder,
        request,
        progress=lambda done, total, loss: screen.show("warm-up", done, total, f"loss {loss:.3f}"),
    )
    checked = start_run.check(folder / "run.toml")
    screen.show("starting services", 0, 1)
    return start_run.launch(checked, state_dir())


def _follow(services: Services, request: Request, screen: Screen) -> RunStatus:
    """Show the run until it ends, and return the status it ended with. Ctrl-C leaves it running."""

    def poll() -> RunStatus:
        with reading(services) as session:
            summary = summary_of(session, request.name)
            parts = demo_report.rollouts(session, request.name)
        screen.show_run(summary, parts, request.updates)
        return RunStatus(summary.status)

    try:
        return follow_run.follow(services, RunId(request.name), poll)
    except KeyboardInterrupt:
        stderr.print(f"gyre: run {request.name} keeps running; `gyre stop {request.name}` stops it")
        raise typer.Exit(1) from None


def _report(services: Services, request: Request, seconds: float) -> Report:
    with reading(services) as session:
        return report(
            summary_of(session, request.name),
            demo_report.heldout_outcomes(session, request.name),
            queries.mean_rewards(session, request.name),
            demo_report.trained_roles(session, request.name),
            seed=request.seed,
            control=request.control,
            seconds=seconds,
        )


def places(services: Services, run: str) -> dict[str, str]:
    """Return the places and commands that show more of the run."""
    found = {"temporal_ui": services.temporal_ui} if services.temporal_ui else {}
    folder: Path = state_dir() / "demo" / run
    return {
        **found,
        "files": str(folder),
        "show": f"gyre show {run}",
        "rollouts": f"gyre rollouts {run}",
        "audit": f"gyre audit {run}",
    }
