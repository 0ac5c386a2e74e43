"""Messages of any size between ranks, sent in parts through torch's store."""

import pickle
from collections.abc import Sequence
from typing import Any

MAX_PART_BYTES = 4 << 20
"""torch's store closes a connection over which more than 8 MiB come at once."""


def send(store: Any, key: str, value: Any) -> None:
    """Store a value under a key, from which any rank can `receive` it."""
    pickled = pickle.dumps(value)
    starts = range(0, len(pickled), MAX_PART_BYTES)
    for number, start in enumerate(starts):
        store.set(_part(key, number), pickled[start : start + MAX_PART_BYTES])
    # The key comes last: a rank that waits for it finds every part.
    store.set(key, str(len(starts)))


def receive(store: Any, key: str) -> Any:
    """Return the value under a key that is known to be there."""
    return pickle.loads(b"".join(store.get(part) for part in _parts(store, key)))


def forget(store: Any, keys: Sequence[str]) -> None:
    """Delete the values under these keys."""
    for key in keys:
        for part in _parts(store, key):
            store.delete_key(part)
        store.delete_key(key)


def _parts(store: Any, key: str) -> list[str]:
    return [_part(key, number) for number in range(int(store.get(key)))]


def _part(key: str, number: int) -> str:
    return f"{key}/part/{number}"
