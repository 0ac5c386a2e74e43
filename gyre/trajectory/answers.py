"""Sampled text to an answer: reasoning, text and tool calls in the Hermes form of Qwen.

``<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>``. Markup that is no call stays in the
text and is counted, never an error: the policy must see what it wrote.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any

from gyre.trajectory.canonical import Message, ToolCall, assistant, whole_characters

TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
OPEN_CALL, OPEN_THINK, CLOSE_THINK = "<tool_call>", "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    tool_calls: tuple[ToolCall, ...]
    reasoning: str | None
    num_malformed: int
    """Tool call markup that could not be read as a call."""

    def message(self) -> Message:
        return assistant(self.text, self.tool_calls, reasoning=self.reasoning)

    def as_json(self) -> dict[str, Any]:
        """``model_call.response``: enough to say the same again."""
        calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in self.tool_calls]
        return {
            "text": self.text,
            "tool_calls": calls,
            "reasoning": self.reasoning,
            "malformed": self.num_malformed,
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Answer":
        calls = tuple(ToolCall(**call) for call in stored["tool_calls"])
        return cls(stored["text"], calls, stored["reasoning"], stored["malformed"])


def parse_answer(sampled: str, *, call_id: str, prefix: str, in_thinking: bool) -> Answer:
    """Read a sampled text, stop token removed.

    ``prefix`` starts the tool call ids (``call_``, ``toolu_``); they follow from ``call_id``, so a call
    that is sampled again after a crash gets the same ones. ``in_thinking``: the prompt ended in
    ``<think>``. NUL becomes U+FFFD: neither Postgres' JSON nor every client can carry it.
    """
    reasoning, rest = _split_reasoning(sampled.replace("\0", "\ufffd"), in_thinking)
    texts: list[str] = []
    calls: list[ToolCall] = []
    num_malformed, start = 0, 0
    for found in TOOL_CALL.finditer(rest):
        call = _read_call(found.group(1), f"{prefix}{_call_suffix(call_id, len(calls))}")
        texts.append(rest[start : found.start()] if call else rest[start : found.end()])
        start = found.end()
        if call:
            calls.append(call)
        else:
            num_malformed += 1
    texts.append(rest[start:])
    num_malformed += rest[start:].count(OPEN_CALL)
    return Answer("".join(texts).strip(), tuple(calls), reasoning, num_malformed)


def short_hash(text: str) -> str:
    """24 hex digits that name something for a client."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _call_suffix(call_id: str, number: int) -> str:
    return short_hash(f"{call_id}#{number}")


def _split_reasoning(text: str, in_thinking: bool) -> tuple[str | None, str]:
    opened = text.lstrip().startswith(OPEN_THINK)
    if not opened and not in_thinking:
        return None, text
    body = text.lstrip().removeprefix(OPEN_THINK) if opened else text
    reasoning, _, rest = body.partition(CLOSE_THINK)
    return reasoning.strip() or None, rest


def _read_call(payload: str, call_id: str) -> ToolCall | None:
    try:
        read = whole_characters(json.loads(payload, parse_constant=_no_constant, parse_float=_finite))
    except (ValueError, RecursionError):
        return None
    if not isinstance(read, dict):
        return None
    name, arguments = read.get("name"), read.get("arguments", {})
    if not isinstance(name, str) or not name or not name.isprintable() or not isinstance(arguments, dict):
        return None
    return ToolCall(call_id, name, json.dumps(arguments, ensure_ascii=False))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    """``1e999`` is JSON, but it would be written again as Infinity, which is not."""
    if math.isinf(value := float(number)):
        raise ValueError(f"{number} is too large")
    return value
