"""What `gyre bench tree` promises, and whether a measurement keeps it."""

from collections.abc import Iterable, Mapping
from typing import Any

LEAST_FRACTION = 0.85
"""Of the work ratio, as a gain in time, for trees that share much."""
LEAST_GAIN = 1.0
"""For trees that share little."""
MUCH = 3.0
"""The work ratio from which a tree shares much."""


def bars(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Name -> ``bar``, what was ``seen`` and whether that ``met`` it: two bars a row."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = f"{row['path_tokens']} tokens, ratio {row['work_ratio']:.1f}"
        if row["work_ratio"] >= MUCH:
            seen = row["fraction_of_ratio"]
            found[f"{name}: fraction of the ratio"] = _bar(LEAST_FRACTION, seen, seen >= LEAST_FRACTION)
        else:
            found[f"{name}: gain"] = _bar(LEAST_GAIN, row["gain"], row["gain"] >= LEAST_GAIN)
        flat, tree = row["flat_peak_bytes"], row["tree_peak_bytes"]
        found[f"{name}: peak bytes"] = _bar(flat, tree, tree <= flat)
    return found


def _bar(bar: float, seen: float, met: bool) -> dict[str, Any]:
    return {"bar": bar, "seen": seen, "met": met}
