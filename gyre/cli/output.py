"""One JSON document on stdout, or a table for people; logs and progress go to stderr."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
stderr = Console(stderr=True, highlight=False)


WIDE = 200
"""Columns of a table that goes to a file or a pipe; a terminal has its own."""


def stdout() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Iterable[str], *, empty: str) -> None:
    """A table of the named columns; ``empty`` when there is no row."""
    if not rows:
        print(empty)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, column in enumerate(columns):
        # The first names the row: it is what a person copies, so it is never broken.
        table.add_column(column.replace("_", " "), overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(cell(row[column]).removeprefix("run/") for column in columns))
    stdout().print(table)


def cell(value: Any) -> str:
    """How a value looks in a table."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, list):
        return " ".join(map(cell, value)) or "-"
    return str(value)
