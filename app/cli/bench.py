"""``gyre bench``: timing claims, measured on this machine."""

import importlib
from typing import Annotated

import typer

from app.cli.output import AsJson, print_json, stderr, stdout
from gyre.contracts.errors import BadInput

BENCHMARKS = ("tree", "gateway")


def bench(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(BENCHMARKS)}.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a small case that proves the path, not the claim.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure a timing claim on this machine, as ratios of alternatives measured side by side."""
    if name not in BENCHMARKS:
        raise BadInput(f"no benchmark {name!r} (allowed: {', '.join(BENCHMARKS)})")
    benchmark = importlib.import_module(f"benchmarks.{name}")
    document = benchmark.measure(stderr.print, quick)
    if as_json:
        print_json(document)
    else:
        benchmark.show(stdout(), document)
