"""Timing claims, as ratios measured in one run. ``gyre bench NAME`` runs ``benchmarks.NAME``.

Each module has ``measure(say, quick) -> document``, whose keys are those of ``gyre bench NAME --json``, and
``show(console, document)``. ``say`` takes a line of progress; ``quick`` is a smaller run that proves the
path, not the claim.
"""
