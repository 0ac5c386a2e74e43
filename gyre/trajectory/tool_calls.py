"""Finds tool calls in a sampled text, in either of the two forms that Qwen's chat templates teach.

* Hermes, Qwen 2.5 and 3: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``
* Qwen3-Coder, Qwen 3.5: ``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``

The first form is one JSON document. Its end is found by decoding it, so that an argument may contain
``</tool_call>``. The second form is read by the response parser of transformers, which also gives each value
the type in the tool's schema; unlike theirs, the template here keeps the spaces of a value. That parser gets
one call at a time: on a whole answer it raises if a call is malformed, and accepts a call that was cut off.

Markup that is not a call stays in the text and is counted.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers.utils.chat_parsing import parse_response
from transformers.utils.chat_parsing.response_templates import load_response_template

from gyre.trajectory.strict_json import read_json, write_object

OPEN_CALL = "<tool_call>"
CLOSE_CALL = re.compile(r"\s*</tool_call>")
OPEN_FUNCTION = re.compile(r"\s*<function=[^>\n]+>")
CLOSE_FUNCTION = re.compile(r"</function>\s*</tool_call>")
# One line break on either side belongs to the markup. A value may contain its closing tag, unless what
# follows could be the next parameter.
PARAMETER = (
    r"\s*<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>(?=\s*(?:<parameter=|</function>|\Z))"
)
# Possessive quantifiers avoid exponential backtracking over the ways to split many parameters.
PARAMETERS = re.compile(
    rf"(?:(?>{PARAMETER.replace('?P<key>', '').replace('?P<value>', '')}))*+\s*+", re.DOTALL
)
OBJECT = re.compile(r"\s*(?=\{\s*[\"}])")
MARKUP = re.compile(r"<tool_call>(?:\s*<function=)?|(?P<close></tool_call>)|<function=")
FUNCTION_TEMPLATE = load_response_template(
    {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "call": {
                "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                "close_pattern": CLOSE_FUNCTION.pattern,
                "content": "xml-inline",
                "content_args": {"tag_pattern": PARAMETER},
                "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
            }
        },
    }
)
DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call and the position of its markup in the text."""

    start: int
    end: int
    name: str
    arguments: str
    """A JSON object."""


def find_calls(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> list[FoundCall]:
    """Return the well-formed calls in order. ``tools``, in OpenAI's form, give values their types."""
    found: list[FoundCall] = []
    start = text.find(OPEN_CALL)
    while start >= 0:
        inner = start + len(OPEN_CALL)
        read = _function_call if OPEN_FUNCTION.match(text, inner) else _json_call
        call = read(text, start, tools)
        if call is not None:
            found.append(call)
        start = text.find(OPEN_CALL, inner if call is None else call.end)
    return found


def count_markup(text: str) -> int:
    """Count attempts at a call in a text without its calls: openings, or closings if there are more."""
    marks = list(MARKUP.finditer(text))
    num_closed = sum(mark["close"] is not None for mark in marks)
    return max(len(marks) - num_closed, num_closed)


def _json_call(text: str, start: int, tools: Sequence[Mapping[str, Any]]) -> FoundCall | None:
    # Checked before decoding, because the decoder's error counts the lines of all text before it: quadratic.
    begun = OBJECT.match(text, start + len(OPEN_CALL))
    if begun is None:
        return None
    try:
        _, end = DECODER.raw_decode(text, begun.end())
        read = read_json(text[begun.end() : end])
    except (ValueError, RecursionError):
        return None
    closed = CLOSE_CALL.match(text, end)
    if closed is None or not isinstance(read, dict) or not set(read) <= {"name", "arguments"}:
        return None
    return _checked(start, closed.end(), read.get("name"), read.get("arguments", {}))


def _function_call(text: str, start: int, tools: Sequence[Mapping[str, Any]]) -> FoundCall | None:
    """Never raises: neither sampled text nor a harness's schema is a reason to fail a model call."""
    opened = OPEN_FUNCTION.match(text, start + len(OPEN_CALL))
    next_call = text.find(OPEN_CALL, start + len(OPEN_CALL))
    closed = CLOSE_FUNCTION.search(text, start, next_call if next_call >= 0 else len(text))
    if opened is None or closed is None:
        return None
    if not PARAMETERS.fullmatch(text, opened.end(), closed.start()):
        return None
    # Without rstrip, the parser would search for one more parameter at each of many trailing spaces.
    inner = text[opened.end() : closed.start()].rstrip()
    markup = text[start : opened.end()] + inner + closed[0]
    try:
        read = parse_response(markup, FUNCTION_TEMPLATE, prefix="", tools=[dict(tool) for tool in tools])
        function = read["call"]["function"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return _checked(start, closed.end(), function["name"], function["arguments"])


def _checked(start: int, end: int, name: Any, arguments: Any) -> FoundCall | None:
    # A name with angle brackets could contain the marker of a turn's end, where the next prompt would be cut.
    if not isinstance(name, str) or not name.isprintable() or not name or set(name) & set("<>"):
        return None
    try:
        return FoundCall(start, end, name, write_object(arguments))
    except (ValueError, RecursionError):
        return None
