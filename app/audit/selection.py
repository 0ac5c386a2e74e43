"""Chooses the calls whose log-probabilities are recomputed: seeded, and spread over all versions."""

import random
from collections import defaultdict

from db.audit import AuditSpan

MAX_TOKENS = 20_000
"""Sampled tokens to recompute: minutes on two cores for a small model, far above what a mean needs."""


def choose_calls(spans: list[AuditSpan], max_tokens: int, seed: int) -> set[str]:
    """Ids of calls that give each policy version an equal share of ``max_tokens`` sampled tokens.

    What a version with few tokens leaves over goes to the others. Calls are taken whole, so a share
    is exceeded by less than one call.
    """
    by_version: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for span in spans:
        for version, count in span.versions:
            by_version[version].append((span.call_id, count))
    chosen: set[str] = set()
    left = max_tokens
    smallest_first = sorted(by_version, key=lambda v: (sum(n for _, n in by_version[v]), v))
    for position, version in enumerate(smallest_first):
        share = left // (len(smallest_first) - position)
        calls = by_version[version]
        random.Random(f"{seed}/{version}").shuffle(calls)
        left -= _take(calls, share, chosen)
    return chosen


def _take(calls: list[tuple[str, int]], share: int, chosen: set[str]) -> int:
    """Add calls to ``chosen`` until their tokens of this version reach ``share``; returns the tokens."""
    taken = 0
    for call, count in calls:
        if taken >= share:
            break
        chosen.add(call)
        taken += count
    return taken
