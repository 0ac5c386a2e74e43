"""Sampled text to an answer: reasoning, text and tool calls.

Malformed call markup stays in the text and is counted. It is never an error: the policy must see what it
wrote.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gyre.trajectory.canonical import Message, ToolCall, assistant
from gyre.trajectory.tool_calls import OPEN_CALL, count_markup, find_calls

OPEN_THINK, CLOSE_THINK = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Answer:
    """A sampled text, parsed."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    reasoning: str | None
    num_malformed: int
    """Tool call markup that could not be read as a call."""

    @property
    def num_characters(self) -> int:
        """Characters of reasoning, text and calls."""
        calls = sum(len(call.name) + len(call.arguments) for call in self.tool_calls)
        return len(self.text) + len(self.reasoning or "") + calls

    def message(self) -> Message:
        """Return the answer in canonical form."""
        return assistant(self.text, self.tool_calls, reasoning=self.reasoning)

    def as_json(self) -> dict[str, Any]:
        """Return the value of ``model_call.response``, from which the same answer can be sent again."""
        calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in self.tool_calls]
        return {
            "text": self.text,
            "tool_calls": calls,
            "reasoning": self.reasoning,
            "malformed": self.num_malformed,
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Answer":
        """Rebuild an answer from `as_json`."""
        calls = tuple(ToolCall(**call) for call in stored["tool_calls"])
        return cls(stored["text"], calls, stored["reasoning"], stored["malformed"])


def parse_answer(
    sampled: str,
    *,
    call_id: str,
    prefix: str,
    in_thinking: bool,
    tools: Sequence[Mapping[str, Any]] = (),
) -> Answer:
    """Parse a sampled text without its stop token; ``tools`` are those of its request.

    ``prefix`` starts the tool call ids (``call_``, ``toolu_``). The rest follows from ``call_id``, so that
    a call which is sampled again after a crash gets the same ids. ``in_thinking``: the prompt ended in
    ``<think>``.
    """
    reasoning, rest, closed = _split_reasoning(_without_nul(sampled), in_thinking)
    texts: list[str] = []
    calls: list[ToolCall] = []
    start = 0
    for found in find_calls(rest, tools):
        texts.append(rest[start : found.start])
        start = found.end
        tool_call_id = f"{prefix}{short_hash(f'{call_id}#{len(calls)}')}"
        calls.append(ToolCall(tool_call_id, found.name, found.arguments))
    text = "".join([*texts, rest[start:]])
    # Reasoning may mention calls. One in reasoning that never ends was intended, and was not made.
    num_malformed = count_markup(text) + (0 if closed else count_markup(reasoning))
    return Answer(text.strip(), tuple(calls), reasoning.strip() or None, num_malformed)


def said_so_far(sampled: str, *, in_thinking: bool) -> tuple[str, str]:
    """Return the reasoning and text of an unfinished sampled text that can be sent already.

    Each is a prefix of what `parse_answer` finds in any continuation of ``sampled``. Held back are the
    beginning of possible markup, an incomplete character, and trailing space.
    """
    known = _without_nul(sampled).rstrip("\ufffd")
    if OPEN_THINK.startswith(known.lstrip()):
        return "", ""
    reasoning, rest, closed = _split_reasoning(known, in_thinking)
    if not closed:
        return _without_tail(reasoning, CLOSE_THINK).strip(), ""
    begun, markup, _ = rest.partition(OPEN_CALL)
    return reasoning.strip(), (begun if markup else _without_tail(begun, OPEN_CALL)).strip()


def short_hash(text: str) -> str:
    """Return 24 hex digits, for ids that clients see."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _without_nul(text: str) -> str:
    """Replace NUL by U+FFFD: neither Postgres' JSON nor every client can carry it."""
    return text.replace("\0", "\ufffd")


def _split_reasoning(text: str, in_thinking: bool) -> tuple[str, str, bool]:
    """Return the reasoning, the rest, and whether the reasoning has ended (True if there is none)."""
    opened = text.lstrip().startswith(OPEN_THINK)
    if not opened and not in_thinking:
        return "", text, True
    body = text.lstrip().removeprefix(OPEN_THINK) if opened else text
    reasoning, ended, rest = body.partition(CLOSE_THINK)
    return reasoning, rest, bool(ended)


def _without_tail(text: str, tag: str) -> str:
    """Cut off an end of ``text`` that could be the beginning of ``tag``."""
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    held = next((size for size in sizes if text.endswith(tag[:size])), 0)
    return text[: len(text) - held]
