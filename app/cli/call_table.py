"""``gyre calls``: the model calls of a rollout, one line each."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from app.cli.output import AsJson, cell, fitting, print_json, print_table, stdout
from app.cli.reading import reading_rollout
from db import rollout_queries

Record = Mapping[str, Any]
RolloutName = Annotated[str, typer.Argument(help="NAME/group/0/rollout/0, with or without `run/`.")]
SPACIOUS = 120
"""Columns of a terminal that has room for the number of tokens that each policy version sampled."""
NUMBERS = frozenset({"input", "reused", "encoded", "output", "malformed", "engine ms"})
ROOMY = ("dialect", "delivered", "engine ms", "status")
"""Columns that a narrow terminal does without, first to last."""


def calls(rollout: RolloutName, as_json: AsJson = False) -> None:
    """List the model calls of a rollout, over all its attempts."""
    with reading_rollout(rollout) as (session, name):
        rows = rollout_queries.calls(session, name)
    if as_json:
        print_json(rows)
    elif rows:
        print_calls(name, rows)
    else:
        print("no model calls yet")


def print_calls(name: str, rows: Sequence[Record]) -> None:
    console = stdout()
    console.print(f"{name.removeprefix('run/')}: {statuses(rows)} {_totals(rows)}")
    shown = [_cells(row, whole_spans=console.width >= SPACIOUS) for row in rows]
    # Columns of nothing but dashes and zeros are left out: the line above has the totals.
    filled = [title for title in shown[0] if any(row[title] not in ("-", "0") for row in shown)]
    styles = ["red" if row["status"] == "failed" else "dim" if row["role"] == "side" else "" for row in rows]
    print_table(console, shown, fitting(shown, filled, ROOMY, console.width), numbers=NUMBERS, styles=styles)
    for row, cells in zip(rows, shown, strict=True):
        if row["failure"]:
            console.print(f"{cells['call']} failed: {row['failure']}", markup=False)


def _cells(row: Record, *, whole_spans: bool) -> dict[str, str]:
    values = {
        "call": f"{row['attempt']}/{row['index']}",
        "role": words(row["role"]),
        "dialect": row["dialect"],
        "status": words(row["status"]),
        "input": f"{row['num_input_tokens']:,}",
        "reused": f"{row['num_reused_tokens']:,}",
        "encoded": f"{row['num_encoded_tokens']:,}",
        "output": f"{row['num_output_tokens']:,}",
        "policy": version_spans(row["versions"]) if whole_spans else version_range([row]),
        "malformed": f"{row['num_malformed_tool_calls']:,}",
        "finish": row["finish_reason"] if row["status"] == "committed" else words(row["status"]),
        "engine ms": None if row["engine_ms"] is None else f"{row['engine_ms']:,}",
        "delivered": None if row["delivered_at"] is None else row["delivered_at"].astimezone().strftime("%X"),
    }
    return {title: cell(value or None) for title, value in values.items()}


def _totals(rows: Sequence[Record]) -> str:
    committed = [row for row in rows if row["status"] == "committed"]
    tokens = ", ".join(
        f"{sum(row[f'num_{name}_tokens'] for row in committed):,} {name}"
        for name in ("input", "reused", "encoded", "output")
    )
    malformed = sum(row["num_malformed_tool_calls"] for row in committed)
    dialects = ", ".join(sorted({row["dialect"] for row in rows}))
    return f"in {dialects}; tokens: {tokens}; {_counted(malformed, 'malformed tool call')}"


def statuses(rows: Sequence[Record]) -> str:
    """Return the number of calls in each status: ``3 calls (2 committed, 1 in flight)``."""
    by_status = Counter(row["status"] for row in rows)
    parts = [f"{by_status[status]} {words(status)}" for status in sorted(by_status)]
    return f"{_counted(len(rows), 'call')} ({', '.join(parts)})" if parts else "no calls"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def words(name: str) -> str:
    """Spell a role or a status with spaces, at which a table may break it."""
    return name.replace("_", " ")


def version_range(sampled: Sequence[Record]) -> str:
    """Return the policy versions that sampled these nodes or calls, as ``3`` or ``3-5``."""
    seen = {version for each in sampled for version, _ in each["versions"] or []}
    return "" if not seen else str(min(seen)) if len(seen) == 1 else f"{min(seen)}-{max(seen)}"


def version_spans(versions: list[Any] | None) -> str:
    """Return ``3x10 4x2`` for ``[[3, 10], [4, 2]]`` (version x tokens), and a single span's version alone."""
    if versions and len(versions) == 1:
        return str(versions[0][0])
    return " ".join(f"{version}x{tokens}" for version, tokens in versions or [])
