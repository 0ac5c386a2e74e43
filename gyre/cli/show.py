"""``gyre runs``, ``show``, ``groups`` and ``rollouts``: a run as its rows tell it."""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from sqlalchemy.orm import Session

from db import queries
from db import runs as run_rows
from gyre import stack
from gyre.cli.output import AsJson, cell, print_json, print_rows, stdout
from gyre.cli.reading import reading, reading_run, run_name
from gyre.contracts.ids import RunId
from gyre.settings.state import state_dir

Run = Annotated[str, typer.Argument(help="The run's name.")]
KEYS = ("run", "status", "updates", "policy_version", "account", "dispositions")
"""Of RunSummary, in ``show --json``; ``checks`` follows. """
ANSWERS = {True: "yes", False: "[bold red]NO[/]", None: "-"}
"""To whether a check holds; None where it does not apply yet."""


def runs(as_json: AsJson = False) -> None:
    """List every run that this state directory knows, newest first."""
    rows: list[dict[str, Any]] = []
    for services in stack.all_services(state_dir()):
        with reading(services) as session:
            found = [queries.summarise(session, row.id) for row in run_rows.newest_first(session)]
        rows += [asdict(summary) for summary in found if summary is not None]
    rows.sort(key=lambda row: row["created_at"], reverse=True)
    if as_json:
        print_json(rows)
        return
    columns = ("run", "status", "updates", "mean_reward", "running", "created_at", "finished_at")
    print_rows(rows, columns, empty="no runs yet; `gyre demo` makes one")


def show(run: Run, as_json: AsJson = False) -> None:
    """Show one run: how far it is, where its groups and rollouts are, and whether its books balance."""
    with reading_run(run_name(run)) as session:
        document = describe(session, run_name(run))
    if as_json:
        print_json(document)
    else:
        print_document(document)


def describe(session: Session, run: RunId) -> dict[str, Any]:
    """The document of ``show --json``; its first seven keys are kept stable."""
    summary = queries.summarise(session, run)
    assert summary is not None, f"{run} was looked up before"
    values = asdict(summary)
    head = {key: values.pop(key) for key in KEYS}
    return {**head, "checks": queries.checks(session, summary), **values}


def print_document(values: dict[str, Any]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for key in ("run", "status", "failure", "updates", "mean_reward", "running", "created_at", "finished_at"):
        if values[key] is not None:
            table.add_row(key.replace("_", " "), cell(values[key]))
    for key in ("account", "dispositions"):
        table.add_row(key, ", ".join(f"{count} {name}" for name, count in values[key].items()))
    for name, holds in values["checks"].items():
        table.add_row(name.replace("_", " "), ANSWERS[holds])
    stdout().print(table)


def groups(run: Run, as_json: AsJson = False) -> None:
    """List the query groups of a run."""
    with reading_run(run_name(run)) as session:
        rows = queries.groups(session, run_name(run))
    if as_json:
        print_json(rows)
        return
    columns = (
        "id", "task", "purpose", "phase", "status", "policy_version", "scored", "placeholder", "excluded",
        "executions", "mean_reward",
    )  # fmt: skip
    print_rows(rows, columns, empty="no groups dispatched yet")


def rollouts(run: Run, as_json: AsJson = False) -> None:
    """List the rollouts of a run."""
    with reading_run(run_name(run)) as session:
        rows = queries.rollouts(session, run_name(run))
    if as_json:
        print_json(rows)
        return
    columns = (
        "id", "task", "purpose", "status", "disposition", "reward", "attempts", "calls", "sampled_tokens",
        "end_reason", "detail",
    )  # fmt: skip
    print_rows(rows, columns, empty="no rollouts yet")
