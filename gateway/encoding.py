"""Text to token ids: the head of a prompt (system prompt and tools) is encoded once for all its executions.

A tokenizer cuts text at its special tokens before anything else, so what stands before and after the end of a
turn can be encoded apart. `_cuts_at` refuses tokenizers for which that might not hold.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from gyre.trajectory.arrays import Ids, as_ids

LONG_HEAD = 4_000
"""Characters; shorter heads are not worth their place."""
KEPT_HEADS = 64
PROBES = ("word", " word", "\nword", "  ", "1", "é", "{")
"""Beginnings and ends that tokenizers treat apart: with and without space, line ends, digits, letters."""


class Encoder:
    """Thread-safe. Encodes without the interpreter's lock where the tokenizer can."""

    def __init__(self, tokenizer: Any, end_of_turn: str | None) -> None:
        """``end_of_turn`` is the text that ends a turn in the chat template, if there is one."""
        self._tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        self._cut = end_of_turn if end_of_turn and self._cuts_at(end_of_turn) else None
        self._head = lru_cache(maxsize=KEPT_HEADS)(self._whole)

    def encode(self, text: str) -> Ids:
        end = text.find(self._cut) + len(self._cut) if self._cut and self._cut in text else 0
        if end < LONG_HEAD:
            return self._whole(text)
        return np.concatenate([self._head(text[:end]), self._whole(text[end:])])

    @property
    def heads(self) -> Any:
        """Hits and misses of heads since this process started."""
        return self._head.cache_info()

    def _whole(self, text: str) -> Ids:
        if self._backend is None:
            return as_ids(self._tokenizer.encode(text, add_special_tokens=False))
        return as_ids(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def _cuts_at(self, end: str) -> bool:
        """Whether ``end`` always is a token of its own that takes nothing from its neighbours."""
        if self._backend is None:
            return False
        tokens = self._backend.get_added_tokens_decoder().values()
        own = next((token for token in tokens if token.content == end), None)
        if own is None or own.lstrip or own.rstrip or own.single_word or own.normalized:
            return False
        others = [token.content for token in tokens if token.content != end]
        if any(end in other or _overlaps(other, end) for other in others):
            return False
        return all(self._apart(before, end, after) for before in PROBES for after in PROBES)

    def _apart(self, before: str, end: str, after: str) -> bool:
        pieces = np.concatenate([self._whole(before + end), self._whole(after)])
        return np.array_equal(self._whole(before + end + after), pieces)


def _overlaps(other: str, end: str) -> bool:
    """Whether a text can hold ``other`` so that it takes the beginning of an ``end``."""
    return any(other.endswith(end[:size]) for size in range(1, len(end)))
