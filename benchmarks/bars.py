"""The bars of `gyre bench tree`: the least gain and the most memory that a measurement must show."""

from collections.abc import Iterable, Mapping
from typing import Any

MIN_FRACTION = 0.85
"""Least gain in time, as a fraction of the work ratio, for trees that share much."""
MIN_GAIN = 1.0
"""Least gain in time for trees that share little."""
MUCH_SHARED = 3.0
"""Work ratio from which a tree counts as sharing much."""


def bars(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return two bars per row by name: the ``bar``, the value ``seen``, and whether it was ``met``."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = f"{row['path_tokens']} tokens, ratio {row['work_ratio']:.1f}"
        if row["work_ratio"] >= MUCH_SHARED:
            seen = row["fraction_of_ratio"]
            found[f"{name}: fraction of the ratio"] = _bar(MIN_FRACTION, seen, seen >= MIN_FRACTION)
        else:
            found[f"{name}: gain"] = _bar(MIN_GAIN, row["gain"], row["gain"] >= MIN_GAIN)
        flat, tree = row["flat_peak_bytes"], row["tree_peak_bytes"]
        found[f"{name}: peak bytes"] = _bar(flat, tree, tree <= flat)
    return found


def _bar(bar: float, seen: float, met: bool) -> dict[str, Any]:
    return {"bar": bar, "seen": seen, "met": met}
