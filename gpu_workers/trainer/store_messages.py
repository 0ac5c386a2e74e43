"""Values of any size through the process group's store, from one rank to others."""

import pickle
from collections.abc import Sequence
from typing import Any

LONGEST_PART = 4 << 20
"""Bytes; torch's store ends the connection over which more than 8 MiB come at once."""


def send(store: Any, key: str, value: Any) -> None:
    """Write what `receive` reads; whoever waits for ``key`` finds all of it."""
    written = pickle.dumps(value)
    starts = range(0, len(written), LONGEST_PART)
    for number, start in enumerate(starts):
        store.set(_part(key, number), written[start : start + LONGEST_PART])
    store.set(key, str(len(starts)))


def receive(store: Any, key: str) -> Any:
    """The value under a key that is there already."""
    return pickle.loads(b"".join(store.get(part) for part in _parts(store, key)))


def forget(store: Any, keys: Sequence[str]) -> None:
    """Delete what was sent."""
    for key in keys:
        for part in _parts(store, key):
            store.delete_key(part)
        store.delete_key(key)


def _parts(store: Any, key: str) -> list[str]:
    return [_part(key, number) for number in range(int(store.get(key)))]


def _part(key: str, number: int) -> str:
    return f"{key}/part/{number}"
