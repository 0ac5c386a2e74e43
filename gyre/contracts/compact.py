"""JSON without a space too many, as it is hashed, stored and sent."""

import json
from typing import Any

import orjson


def json_bytes(value: Any) -> bytes:
    """UTF-8. Keys stay in their order. Raises ValueError for text with halves of surrogate pairs."""
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer of more than 64 bits, or deep nesting
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
