"""One JSON document on stdout, or a table for people; logs and progress go to stderr."""

import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gyre.contracts.json_text import indented_json

Cells = Mapping[str, str]
"""A row of a table: column -> what stands there."""

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
stderr = Console(stderr=True, highlight=False)
WIDE = 200
"""Columns of a table that goes to a file or a pipe; a terminal has its own."""
EMPTY = ("", "-")
"""How a cell looks in which nothing stands."""
NAMING = frozenset({"pid"})
"""Numbers that count nothing: they are shown as a person types them."""


def stdout() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)


def print_json(document: Any) -> None:
    print(indented_json(document, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def print_rows(
    rows: Sequence[Mapping[str, Any]], columns: Iterable[str], *, empty: str, beneath: Sequence[str] = ()
) -> None:
    """A table of the named columns; ``empty`` when there is no row.

    A column in which nothing stands is left out. Those of ``beneath`` that the console has no room for, the
    first of them first, are told under the table. A row with nothing but its first column is a heading.
    """
    if not rows:
        print(empty)
        return
    console = stdout()
    cells, filled = _filled(rows, columns)
    shown = fitting(cells, filled, beneath, console.width)
    print_table(console, cells, shown, numbers=[each for each in shown if _is_number(rows, each)])
    for row in cells:
        for column in filled:
            if column not in shown and row[column] not in EMPTY:
                console.print(Text(f"{row[filled[0]]} {_title(column)}: {row[column]}"))


def rows_fit(rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> bool:
    """Whether `print_rows` needs one line for each row."""
    return fits(*_filled(rows, columns), stdout().width)


def _filled(rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> tuple[list[Cells], list[str]]:
    """(what stands in the columns, those in which something does)."""
    names = list(columns)
    cells: list[Cells] = [{column: _text(row, column) for column in names} for row in rows]
    return cells, [column for column in names if any(row[column] not in EMPTY for row in cells)]


def _text(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column, "")
    counts = isinstance(value, int) and column not in NAMING
    return f"{value:,}" if counts else cell(value).removeprefix("run/")


def _is_number(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    return any(isinstance(row.get(column), int | float) for row in rows)


def _title(column: str) -> str:
    return column.replace("_", " ")


def print_table(
    console: Console,
    rows: Sequence[Cells],
    columns: Sequence[str],
    *,
    numbers: Container[str],
    styles: Iterable[str] = repeat(""),
) -> None:
    """Every word and every number is whole; words go onto further lines where the room is short.

    Where not even that helps, the table is wider than the console and the terminal breaks its lines.
    """
    widths = _widths(rows, columns, console.width)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.width = _taken(widths.values())
    for column, width in widths.items():
        justify = "right" if column in numbers else "left"
        table.add_column(_title(column), width=width, overflow="fold", justify=justify)
    for row, style in zip(rows, styles, strict=False):
        table.add_row(*(Text(row[column]) for column in columns), style=style)
    console.print(table, crop=False)


def fitting(rows: Sequence[Cells], columns: Iterable[str], spare: Iterable[str], room: int) -> list[str]:
    """The columns without as many of the ``spare`` ones, in their order, as the others' lines need."""
    left = list(columns)
    for column in spare:
        if column in left and not fits(rows, left, room):
            left.remove(column)
    return left


def fits(rows: Sequence[Cells], columns: Iterable[str], room: int) -> bool:
    """Whether each row takes one line."""
    return _taken(_longest([*_title(each).split(), *_cells(rows, each)]) for each in columns) <= room


def narrowest(rows: Sequence[Cells], columns: Iterable[str]) -> int:
    """Columns of the console that a table takes whose lines break at every space."""
    return _taken(_longest(" ".join([_title(each), *_cells(rows, each)]).split()) for each in columns)


def _widths(rows: Sequence[Cells], columns: Sequence[str], room: int) -> dict[str, int]:
    """Titles give way before cells; the first column, which names the row, does so last."""
    whole = {each: _longest([_title(each), *_cells(rows, each)]) for each in columns}
    if _taken(whole.values()) <= room:
        return whole
    widths = {each: _longest([*_title(each).split(), *_cells(rows, each)]) for each in columns}
    slack = {each: widths[each] - narrowest(rows, [each]) for each in columns}
    excess = _taken(widths.values()) - room
    if excess > sum(slack.values()):
        return widths
    for _ in range(excess):
        given = max(columns, key=lambda each: (slack[each] > 0, each != columns[0], slack[each]))
        widths[given] -= 1
        slack[given] -= 1
    return widths


def _cells(rows: Sequence[Cells], column: str) -> list[str]:
    return [row[column] for row in rows]


def _longest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts))


def _taken(widths: Iterable[int]) -> int:
    """With a space between every two columns."""
    return sum(width + 1 for width in widths) - 1


def cell(value: Any) -> str:
    """How a value looks in a table."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M")
    if isinstance(value, list):
        return " ".join(map(cell, value)) or "-"
    return str(value)
