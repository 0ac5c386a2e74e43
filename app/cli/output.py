"""Print one JSON document on stdout for programs or a table for people; progress and logs go to stderr."""

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
"""One row of a table: column -> text."""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
stderr = Console(stderr=True, highlight=False)
WIDE = 200
"""Width of a table that goes to a file or a pipe; a terminal has its own."""
EMPTY = ("", "-")
"""Texts of a cell without a value."""
NAMING = frozenset({"pid"})
"""Columns whose integers are names: they get no thousands separators, so that they can be copied."""


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
    """Print a table of the named columns, or the sentence ``empty`` when there is no row.

    Columns without any value are left out. Where the console is too narrow for one line per row, the columns
    in ``beneath`` leave the table, first to last, and their values are printed under it. A row that has only
    its first column is a heading.
    """
    if not rows:
        print(empty)
        return
    console = stdout()
    cells, filled = _filled(rows, columns)
    shown = fitting(cells, filled, beneath, console.width)
    numbers = {name for name in shown if any(isinstance(row.get(name), int | float) for row in rows)}
    print_table(console, cells, shown, numbers=numbers)
    for row in cells:
        for column in filled:
            if column not in shown and row[column] not in EMPTY:
                console.print(Text(f"{row[filled[0]]} {_title(column)}: {row[column]}"))


def rows_fit(rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> bool:
    """Whether `print_rows` has room for every column with one line per row."""
    return table_width(*_filled(rows, columns)) <= stdout().width


def _filled(rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> tuple[list[Cells], list[str]]:
    """Return the rows as texts, and the columns in which at least one row has a value."""
    names = list(columns)
    cells: list[Cells] = [{column: _text(row, column) for column in names} for row in rows]
    return cells, [column for column in names if any(row[column] not in EMPTY for row in cells)]


def _text(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column, "")
    counts = isinstance(value, int) and column not in NAMING
    return f"{value:,}" if counts else cell(value).removeprefix("run/")


def _title(column: str) -> str:
    return column.replace("_", " ")


def fitting(rows: Sequence[Cells], columns: Iterable[str], spare: Iterable[str], room: int) -> list[str]:
    """Return the columns, without as many of the ``spare`` ones, first to last, as one line per row needs."""
    left = list(columns)
    for column in spare:
        if column in left and table_width(rows, left) > room:
            left.remove(column)
    return left


def table_width(
    rows: Sequence[Cells], columns: Iterable[str], *, fold_titles: bool = True, fold_cells: bool = False
) -> int:
    """Return the width of a table whose titles, or whose cells too, break at every space."""
    width = -1  # a space stands between every two columns
    for column in columns:
        title, texts = _title(column), [row[column] for row in rows]
        lines = [*(title.split() if fold_titles else [title]), *"\n".join(texts).split("\n")]
        width += 1 + max(map(cell_len, " ".join(lines).split() if fold_cells else lines))
    return width


def print_table(
    console: Console,
    rows: Sequence[Cells],
    columns: Sequence[str],
    *,
    numbers: Container[str],
    styles: Iterable[str] = repeat(""),
) -> None:
    """Print a table in which every word and every number is whole.

    Titles break before cells do, and the first column, which names the row, breaks last. A table whose words
    do not fit stays wider than the console.
    """
    room, table = console.width, Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    fold_titles = table_width(rows, columns, fold_titles=False) > room
    fixed: dict[str, int] = {}
    if (needed := table_width(rows, columns)) > room:
        if table_width(rows, columns, fold_cells=True) <= room:
            fixed = _fixed_widths(rows, columns, room)
        else:
            table.width = needed
    for column in columns:
        title = _title(column)
        table.add_column(
            title.replace(" ", "\n") if fold_titles else title,
            justify="right" if column in numbers else "left",
            overflow="fold",
            width=fixed.get(column),
        )
    for row, style in zip(rows, styles, strict=False):
        table.add_row(*(Text(row[column]) for column in columns), style=style)
    console.print(table, crop=False)


def _fixed_widths(rows: Sequence[Cells], columns: Sequence[str], room: int) -> dict[str, int]:
    """Return the least widths of all columns but one, which is left to rich to fill the room.

    Rich narrows the widest column first, even where that cuts a number, so it may choose one width only.
    """
    first, *others = columns
    whole, least = (
        {each: table_width(rows, [each], fold_cells=fold) for each in columns} for fold in (False, True)
    )
    flexible = first
    if whole[first] + 1 + table_width(rows, others, fold_cells=True) <= room:
        least[first] = whole[first]
        flexible = max(others, key=lambda each: whole[each] - least[each])
    del least[flexible]
    return least


def cell(value: Any) -> str:
    """Format one value for a table."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M")
    if isinstance(value, list):
        return " ".join(map(cell, value)) or "-"
    return str(value)
