"""JSON text, one named writer per purpose.

Hashes, prompts and files of earlier runs hold the bytes that these functions once wrote, so the spacing,
escaping and key order of each must never change. Prefer `compact_json` for anything new.
"""

import json
from collections.abc import Callable
from typing import Any

import orjson


def compact_json(value: Any) -> bytes:
    """Write UTF-8 without spaces, keys in their order: HTTP bodies, events, jsonb values, conversation keys.

    Raises ValueError for text with lone surrogates.
    """
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer of more than 64 bits, or deep nesting
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def canonical_json(value: Any, *, spaced: bool = False) -> str:
    """Write ASCII with sorted keys, so that equal values have equal text: fingerprints and match keys.

    ``spaced`` puts a space after commas and colons, as the fingerprints in existing process ledgers have it.
    """
    # Not orjson: it refuses integers of more than 64 bits and escapes fewer characters.
    return json.dumps(value, sort_keys=True, separators=(", ", ": ") if spaced else (",", ":"))


def prompt_json(value: Any) -> str:
    """Write what the policy reads: Unicode as it is, a space after commas and colons, as models learned it.

    Prompts are tokenized from this text and tool calls are stored as it, so other spacing would change the
    tokens of a conversation between two of its calls.
    """
    return json.dumps(value, ensure_ascii=False)


def json_line(value: Any) -> bytes:
    """Write one line of a control socket. ASCII, because paths in it may hold lone surrogates."""
    return json.dumps(value).encode() + b"\n"


def indented_json(value: Any, *, default: Callable[[Any], Any] | None = None) -> str:
    """Write what people read: files of the stack and the output of ``--json``."""
    return json.dumps(value, indent=2, default=default)
