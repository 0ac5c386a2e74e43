"""Screen of the demo: a progress bar per stage, then the tables."""

from collections.abc import Sequence
from math import isnan

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from app.demo.report import Report, Side
from db.demo_report import Rollouts
from db.queries import RunSummary

SPARKS = "▁▂▃▄▅▆▇█"


class Screen:
    """Context manager that shows the current stage as a live bar, or prints its name without a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description:<26}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            refresh_per_second=2,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar: tuple[str, TaskID] | None = None

    def __enter__(self) -> "Screen":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Move the bar; a new stage replaces the old one."""
        if self._bar is None or self._bar[0] != stage:
            if self._bar is not None:
                self._bars.remove_task(self._bar[1])
            if not self._console.is_terminal:
                self._console.print(stage)
            self._bar = stage, self._bars.add_task(stage, total=total, note=note)
        self._bars.update(self._bar[1], completed=done, total=total, note=note)

    def show_run(self, summary: RunSummary, parts: dict[str, Rollouts], updates: int) -> None:
        """Show the stage of a run, judged from its rows."""
        note = f"{sum(part.done for part in parts.values())} rollouts done, {summary.running} running"
        if parts["after"].dispatched:
            self.show("held-out rollouts, after", parts["after"].done, parts["after"].dispatched, note)
        elif parts["train"].dispatched:
            if summary.mean_reward is not None:
                note = f"reward {summary.mean_reward:.3f}, {note}"
            self.show("updates", summary.updates, updates, note)
        elif parts["before"].dispatched:
            self.show("held-out rollouts, before", parts["before"].done, parts["before"].dispatched, note)
        else:
            self.show("starting gateway and cell", 0, 1)


def print_report(console: Console, found: Report, where: dict[str, str]) -> None:
    """Print the final tables; ``where`` lists what to look at next."""
    summary, rewards = found.summary, found.reward_by_update
    facts = {
        "reward by update": f"{sparkline(rewards)} {' '.join(f'{reward:.2f}' for reward in rewards)}",
        "query groups": _counts(summary.account),
        "rollouts": _counts(summary.dispositions),
        "run": f"{summary.run}, seed {found.seed}, {found.seconds:,.0f} s",
        summary.status: summary.failure or "",
        "verdict": found.verdict,
    }
    grid = Table.grid("", Column(overflow="fold"), padding=(0, 2, 0, 0))
    for name, fact in facts.items():
        if fact.strip():
            grid.add_row(name, Text(fact))
    for part in (_heldout_table(found), _trained_table(found), grid):
        console.print(part, "")
    for name, place in where.items():
        console.print(f"{name:<16}  {place}", soft_wrap=True, markup=False)


def _heldout_table(found: Report) -> Table:
    table = Table(title="held-out tasks", title_justify="left", box=None, pad_edge=False)
    for column in ("", "before", "after", "change"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row(
        "mean score (T = 1)",
        _score(found.before),
        _score(found.after),
        f"{_value(found.lift, sign=True)} ± {_value(found.lift_stderr)}",
    )
    for name, before, after in (
        ("greedy score", found.greedy_before.mean, found.greedy_after.mean),
        ("pass rate (T = 1)", found.before.pass_rate, found.after.pass_rate),
        ("greedy pass rate", found.greedy_before.pass_rate, found.greedy_after.pass_rate),
    ):
        table.add_row(name, _value(before), _value(after), _value(after - before, sign=True))
    table.add_row("rollouts (T = 1)", str(found.before.num_rollouts), str(found.after.num_rollouts), "")
    missing = (found.before.num_missing, found.after.num_missing)
    if any(missing):
        table.add_row("without a score", *map(str, missing), "not counted as 0")
    return table


def _trained_table(found: Report) -> Table:
    table = Table(title="what was trained, by role", title_justify="left", box=None, pad_edge=False)
    for column in ("", *found.trained):
        table.add_column(column.replace("_", " "), justify="left" if not column else "right")
    counted = found.trained.values()
    table.add_row("rollouts", *(f"{each.rollouts:,}" for each in counted))
    table.add_row("selected paths", *(f"{each.paths:,}" for each in counted))
    table.add_row("target tokens", *(f"{each.targets:,}" for each in counted))
    return table


def sparkline(values: Sequence[float]) -> str:
    """Draw one bar per value, on a scale from 0 to 1."""
    return "".join(SPARKS[min(len(SPARKS) - 1, int(value * len(SPARKS)))] for value in values)


def _score(side: Side) -> str:
    return f"{_value(side.mean)} ± {_value(side.stderr)}"


def _value(number: float, *, sign: bool = False) -> str:
    return "-" if isnan(number) else f"{number:+.3f}" if sign else f"{number:.3f}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
