"""Choose the calls whose log-probabilities are recomputed: seeded, and spread over all versions."""

import random
from collections import defaultdict

from db.audit import AuditSpan

MAX_TOKENS = 20_000
"""Default number of sampled tokens to recompute: far more than a mean needs, and minutes of work on two cores
for a small model."""


def choose_calls(spans: list[AuditSpan], max_tokens: int, seed: int) -> set[str]:
    """Return ids of calls that give each policy version an equal share of ``max_tokens`` sampled tokens.

    The unused share of a version with few tokens goes to the others. Calls are taken whole, so a share may be
    exceeded by less than one call.
    """
    by_version: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for span in spans:
        for version, count in span.versions:
            by_version[version].append((span.call_id, count))
    chosen: set[str] = set()
    left = max_tokens
    # Smallest first, so that what they leave over is known before the larger ones get their share.
    smallest_first = sorted(by_version, key=lambda v: (sum(n for _, n in by_version[v]), v))
    for position, version in enumerate(smallest_first):
        share, taken = left // (len(smallest_first) - position), 0
        calls = by_version[version]
        random.Random(f"{seed}/{version}").shuffle(calls)
        for call, count in calls:
            if taken >= share:
                break
            chosen.add(call)
            taken += count
        left -= taken
    return chosen
