"""``gyre runs``, ``show``, ``groups`` and ``rollouts``: what Postgres knows about runs."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from sqlalchemy.orm import Session

from app import stack
from app.cli.output import AsJson, cell, print_json, print_rows, rows_fit, stdout
from app.cli.reading import reading, reading_run, run_name
from db import queries
from db import runs as run_rows
from gyre.contracts.ids import RunId
from gyre.settings.state import state_dir

Run = Annotated[str, typer.Argument(help="The run's name.")]
KEYS = ("run", "status", "updates", "policy_version", "account", "dispositions")
"""Fields of RunSummary that open the document of ``show --json``; ``checks`` follows them."""
GROUPS = (
    "id", "task", "purpose", "phase", "status", "policy_version", "scored", "placeholder", "excluded",
    "executions", "mean_reward",
)  # fmt: skip
SHORT_GROUPS = ("id", "task", "status", "policy", "scored", "reward", "placeholder", "excluded")
ROLLOUTS = (
    "id", "task", "purpose", "status", "disposition", "reward", "attempts", "calls", "sampled_tokens",
    "end_reason", "detail",
)  # fmt: skip
SHORT_ROLLOUTS = (
    "id", "state", "reward", "attempts", "calls", "sampled_tokens", "end_reason", "detail",
)  # fmt: skip
"""Columns for a narrow console, where purpose and task become a heading (of groups: purpose and phase)."""
ANSWERS = {True: "yes", False: "[bold red]NO[/]", None: "-"}
"""How the outcome of a check is printed; None stands for one that does not apply yet."""


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
    print_rows(rows, columns, empty="no runs yet; `gyre demo` starts one")


def show(run: Run, as_json: AsJson = False) -> None:
    """Show one run: its progress, its groups and rollouts by state, and whether the account balances."""
    with reading_run(run_name(run)) as session:
        document = describe(session, run_name(run))
    if as_json:
        print_json(document)
    else:
        print_document(document)


def describe(session: Session, run: RunId) -> dict[str, Any]:
    """Build the document of ``show --json``; its first seven keys are stable."""
    summary = queries.summarise(session, run)
    assert summary is not None, f"{run} was looked up before"
    values = asdict(summary)
    head = {key: values.pop(key) for key in KEYS}
    return {**head, "checks": queries.checks(session, summary), **values}


def print_document(values: dict[str, Any]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for key in ("run", "status", "failure", "updates", "mean_reward", "running", "created_at", "finished_at"):
        if values[key] is not None:
            table.add_row(key.replace("_", " "), Text(cell(values[key])))  # may hold brackets
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
    else:
        print_groups(rows)


def print_groups(rows: Sequence[queries.Record]) -> None:
    columns = GROUPS
    if not rows_fit(rows, columns):
        rows, columns = _headed(map(_short_group, rows)), SHORT_GROUPS
    print_rows(rows, columns, beneath=("placeholder", "excluded"), empty="no groups dispatched yet")


def _short_group(row: queries.Record) -> queries.Record:
    return {
        **row,
        "heading": " ".join(filter(None, (row["purpose"], row["phase"]))),
        "policy": row["policy_version"],
        "scored": f"{row['scored']}/{row['executions']}",
        "placeholder": row["placeholder"] or None,
        "excluded": row["excluded"] or None,
        "reward": row["mean_reward"],
    }


def rollouts(run: Run, as_json: AsJson = False) -> None:
    """List the rollouts of a run."""
    with reading_run(run_name(run)) as session:
        rows = queries.rollouts(session, run_name(run))
    if as_json:
        print_json(rows)
    else:
        print_rollouts(rows)


def print_rollouts(rows: Sequence[queries.Record]) -> None:
    columns = ROLLOUTS
    if not rows_fit(rows, [column for column in columns if column != "detail"]):
        rows, columns = _headed(map(_short_rollout, rows)), SHORT_ROLLOUTS
    print_rows(rows, columns, beneath=("detail", "attempts"), empty="no rollouts yet")


def _short_rollout(row: queries.Record) -> queries.Record:
    return {
        **row,
        "heading": f"{row['purpose']} {row['task']}",
        "state": row["disposition"] or row["status"],
        "attempts": row["attempts"] if row["attempts"] > 1 else None,
        "end_reason": (row["end_reason"] or "-").replace("_", " "),
    }


def _headed(rows: Iterable[queries.Record]) -> list[queries.Record]:
    """Insert a row that has only a heading in front of each series of rows with the same heading."""
    headed: list[queries.Record] = []
    for heading, members in groupby(rows, key=itemgetter("heading")):
        headed += [{"id": heading}, *members]
    return headed
