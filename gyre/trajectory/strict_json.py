"""JSON that Postgres, clients and tokenizers all accept; Python's own reader is more lenient."""

import json
import re
from typing import Any

from pydantic_core import from_json

from gyre.contracts.json_text import prompt_json

SURROGATE_ESCAPE = re.compile(rb"\\u[dD]")


def read_json(raw: bytes | str) -> Any:
    """Return the value of a JSON text, nested at most 200 deep, without NaN. Raises ValueError.

    Lone surrogates become U+FFFD: JavaScript leaves them where it cuts a string inside a character, and
    neither a hash nor a tokenizer accepts them.
    """
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError:
        if not SURROGATE_ESCAPE.search(raw if isinstance(raw, bytes) else raw.encode()):
            raise
    try:
        repaired = json.dumps(replace_lone_surrogates(json.loads(raw)))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    # ``json`` is more lenient, so the strict reader has the last word.
    return from_json(repaired, allow_inf_nan=False)


def replace_lone_surrogates(value: Any) -> Any:
    """Return the same JSON value with U+FFFD in place of lone surrogates, also in keys."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {replace_lone_surrogates(key): replace_lone_surrogates(item) for key, item in value.items()}
    return [replace_lone_surrogates(item) for item in value] if isinstance(value, list) else value


def write_object(value: Any) -> str:
    """Write a JSON object. Raises ValueError for anything that `read_json` does not read as an object."""
    text = prompt_json(value)
    if not isinstance(read_json(text), dict):
        raise ValueError("not an object")
    return text
