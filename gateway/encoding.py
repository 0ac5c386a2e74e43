"""Text to token ids, with a cache of the tokenization of shared prompt prefixes.

A tokenizer cuts text at its special tokens before anything else, so the text before the end of a turn (the
head: system prompt and tools) and the text after it can be encoded separately. `_cuts_at` refuses tokenizers
for which that might not hold. Most also end a word with each line, so the lines of a head can be encoded
separately: tools, one per line, are the same for all tasks. `_ends_words_with_lines` knows which do.
"""

import itertools
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from tokenizers import models

from gyre.trajectory.arrays import Ids, as_ids

LONG_HEAD = 4_000
"""Characters; shorter heads are not worth a place in the cache."""
LONG_LINE = 400
"""Characters; shorter lines are cached together with their neighbours."""
KEPT_PIECES, LONGEST_KEPT = 512, 100_000
"""Pieces in the cache, and characters of one: about 100 MB at most, whatever tools return."""
PROBES = ("word", " word", "\nword", "  ", "1", "é", "{")
"""Beginnings and ends that tokenizers treat differently: spaces, line ends, digits, letters."""
LINE_END = re.compile(r"\n(?=[!-~])")
"""A line end that a visible ASCII character follows."""
WORDS = {
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letters}|\p{{N}}{digits}"
    rf"| ?[^\s{others}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for letters, others in ((r"\p{L}+", r"\p{L}\p{N}"), (r"[\p{L}\p{M}]+", r"\p{L}\p{M}\p{N}"))
    for digits in ("", "{1,3}")
}
"""How the tokenizers of Qwen 2 to 3.5, Llama 3 and GPT-4 split text into words. No word continues after a
line end, and if the text ends with one, its last word ends as it would in front of another line."""


class Encoder:
    """Thread-safe. Releases the interpreter lock while it encodes, where the tokenizer can."""

    def __init__(self, tokenizer: Any, end_of_turn: str | None) -> None:
        """``end_of_turn`` is the text that ends a turn in the chat template, if there is one."""
        self._tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        self._cut = end_of_turn if end_of_turn and self._cuts_at(end_of_turn) else None
        self._by_lines = self._backend is not None and _ends_words_with_lines(self._backend)
        self._piece = lru_cache(maxsize=KEPT_PIECES)(self._whole)

    def encode(self, text: str) -> Ids:
        """Return the ids of a text, shape (num_tokens,)."""
        cut = self._cut
        first = text.find(cut) + len(cut) if cut and cut in text else 0
        if cut is None or first < LONG_HEAD:
            return self._whole(text)
        heads, end = [text[:first]], first
        if self._by_lines:
            # A tool's description may contain the end of a turn: then more tools follow the first one.
            end = text.rfind(cut) + len(cut)
            heads = [*filter(None, (*_pieces(text[:first]), *_pieces(text[first:end])))]
        kept = (self._piece(each) if len(each) <= LONGEST_KEPT else self._whole(each) for each in heads)
        return np.concatenate([*kept, self._whole(text[end:])])

    @property
    def pieces(self) -> Any:
        """Cache statistics of heads, or of their pieces, since this process started."""
        return self._piece.cache_info()

    def _whole(self, text: str) -> Ids:
        if self._backend is None:
            return as_ids(self._tokenizer.encode(text, add_special_tokens=False))
        return as_ids(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def _cuts_at(self, end: str) -> bool:
        """Return whether ``end`` is always a token of its own that takes nothing from its neighbours."""
        if self._backend is None:
            return False
        tokens = self._backend.get_added_tokens_decoder().values()
        own = next((token for token in tokens if token.content == end), None)
        if own is None or own.lstrip or own.rstrip or own.single_word or own.normalized:
            return False
        others = [token.content for token in tokens if token.content != end]
        if any(end in other or _overlaps(other, end) for other in others):
            return False

        def separable(before: str, after: str) -> bool:
            pieces = np.concatenate([self._whole(before + end), self._whole(after)])
            return np.array_equal(self._whole(before + end + after), pieces)

        return all(separable(before, after) for before in PROBES for after in PROBES)


def _pieces(head: str) -> Iterator[str]:
    """Yield the long lines of a head, and the text between them."""
    ends = [end.end() for end in LINE_END.finditer(head)]
    begun = 0
    for start, end in itertools.pairwise([0, *ends, len(head)]):
        if end - start >= LONG_LINE:
            yield from (head[begun:start], head[start:end])
            begun = end
    yield head[begun:]


def _ends_words_with_lines(backend: Any) -> bool:
    """Return whether a text can be cut after a `LINE_END` without changing any id."""
    if not isinstance(backend.model, models.BPE) or backend.model.dropout:
        return False
    if backend.normalizer is not None and _described(backend.normalizer) != {"type": "NFC"}:
        return False
    if any(
        token.lstrip or token.single_word or "\n" in token.content
        for token in backend.get_added_tokens_decoder().values()
    ):
        return False
    match _described(backend.pre_tokenizer) if backend.pre_tokenizer else {}:
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return words in WORDS
        case _:
            return False


def _described(part: Any) -> dict[str, Any]:
    """Return a part of a tokenizer in the form of tokenizer.json."""
    # The bindings expose no other way to read a component's settings than its pickle state.
    return json.loads(part.__getstate__())


def _overlaps(other: str, end: str) -> bool:
    """Return whether ``other`` can take the beginning of an ``end`` that follows it in a text."""
    return any(other.endswith(end[:size]) for size in range(1, len(end)))
