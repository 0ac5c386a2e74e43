"""JSON that whoever comes next can say again: databases, clients and tokenizers are stricter than Python."""

import json
import re
from typing import Any

from pydantic_core import from_json

from gyre.contracts.json_text import prompt_json
from gyre.trajectory.canonical import whole_characters

HALVES = re.compile(rb"\\u[dD]")


def read_json(raw: bytes | str) -> Any:
    """The value of a JSON text, nested at most 200 deep, without NaN. Raises ValueError.

    Halves of surrogate pairs, which JavaScript cuts strings into, become U+FFFD, because neither a hash
    nor a tokenizer can take them.
    """
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError:
        if not HALVES.search(raw if isinstance(raw, bytes) else raw.encode()):
            raise
    try:
        # Read again in the end, so that the same limits hold for what ``json`` takes.
        return from_json(json.dumps(whole_characters(json.loads(raw))), allow_inf_nan=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write_object(value: Any) -> str:
    """A JSON object as text. Raises ValueError if it is none that `read_json` reads."""
    text = prompt_json(value)
    if not isinstance(read_json(text), dict):
        raise ValueError("not an object")
    return text
