"""Random dialogues, each written as a request of every dialect, for properties about all of them."""

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

TOOL = {"type": "object", "properties": {"x": {"type": "string"}, "type": {"type": "integer"}}}


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: dict[str, Any]
    result: str


@dataclass(frozen=True)
class Turn:
    """A user's text, the answer of the policy, and the results of its calls."""

    user: str
    text: str
    reasoning: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Dialogue:
    system: str
    turns: tuple[Turn, ...]
    last: str
    tools: tuple[tuple[str, str], ...]
    """Name and description."""


# Postgres and JSON accept all of Unicode except lone surrogates.
LETTERS = st.characters(exclude_categories=["Cs"])
TEXT = st.text(LETTERS, min_size=1, max_size=12).filter(str.strip)
NAME = st.from_regex(r"[a-z_]{1,9}", fullmatch=True)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(-1e9, 1e9)
    | st.text(LETTERS, max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(LETTERS, max_size=5), inner, max_size=2)
    ),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.text(LETTERS, max_size=5), JSON, max_size=3)


@st.composite
def dialogues(draw: st.DrawFn) -> Dialogue:
    turns: list[Turn] = []
    for number in range(draw(st.integers(0, 3))):
        count = draw(st.integers(0, 2))
        calls = tuple(
            Call(f"call_{number}{i}", draw(NAME), draw(ARGUMENTS), draw(TEXT)) for i in range(count)
        )
        reasoning = draw(st.just("") | TEXT)
        turns.append(Turn(draw(TEXT), draw(TEXT), reasoning, calls))
    tools = draw(st.lists(st.tuples(NAME, st.just("") | TEXT), max_size=2))
    return Dialogue(draw(st.just("") | TEXT), tuple(turns), draw(TEXT), tuple(tools))


def _json(value: Any, *, spaced: bool) -> str:
    separators = (" , ", " : ") if spaced else (",", ":")
    return json.dumps(value, ensure_ascii=spaced, separators=separators)


def in_anthropic(dialogue: Dialogue) -> dict[str, Any]:
    """Write texts as lists with cache markers, and results first in the user's next message."""
    marked = {"cache_control": {"type": "ephemeral"}}
    messages: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for turn in dialogue.turns:
        messages.append(
            {"role": "user", "content": [*results, {"type": "text", "text": turn.user, **marked}]}
        )
        results = [{"type": "tool_result", "tool_use_id": c.id, "content": c.result} for c in turn.calls]
        blocks: list[dict[str, Any]] = []
        if turn.reasoning:
            blocks.append({"type": "thinking", "thinking": turn.reasoning, "signature": "s"})
        blocks.append({"type": "text", "text": turn.text})
        for call in turn.calls:
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments})
        messages.append({"role": "assistant", "content": blocks})
    messages.append({"role": "user", "content": [*results, {"type": "text", "text": dialogue.last}]})
    tools = [{"name": name, "description": text, "input_schema": TOOL} for name, text in dialogue.tools]
    system = [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}]
    system += [{"type": "text", "text": dialogue.system}] if dialogue.system else []
    return {"model": "m", "messages": messages, "tools": tools, "system": system, "max_tokens": 9}


def in_openai(dialogue: Dialogue) -> dict[str, Any]:
    """Write arguments with extra spaces and escaped letters."""
    system = {"role": "developer", "content": dialogue.system}
    messages: list[dict[str, Any]] = [system] if dialogue.system else []
    for turn in dialogue.turns:
        messages.append({"role": "user", "content": turn.user})
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _json(call.arguments, spaced=True)},
            }
            for call in turn.calls
        ]
        answer = {"role": "assistant", "content": f"\n{turn.text}", "reasoning_content": turn.reasoning}
        messages.append(answer | ({"tool_calls": calls} if calls else {}))
        for call in turn.calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": call.result})
    messages.append({"role": "user", "content": [{"type": "text", "text": dialogue.last}]})
    tools = [
        {"type": "function", "function": {"name": name, "description": text, "parameters": TOOL}}
        for name, text in dialogue.tools
    ]
    return {"model": "m", "messages": messages, "tools": tools, "stream": True, "temperature": 0.3}


def in_responses(dialogue: Dialogue) -> dict[str, Any]:
    """Write item ids, metadata and a hosted tool too, as Codex does."""
    items: list[dict[str, Any]] = []
    for number, turn in enumerate(dialogue.turns):
        content = [{"type": "input_text", "text": turn.user}]
        items.append({"type": "message", "role": "user", "id": f"m{number}", "content": content})
        if turn.reasoning:
            summary = [{"type": "summary_text", "text": turn.reasoning}]
            items.append({"type": "reasoning", "id": f"r{number}", "summary": summary})
        text = [{"type": "output_text", "text": turn.text, "annotations": []}]
        items.append({"type": "message", "role": "assistant", "id": f"a{number}", "content": text})
        for call in turn.calls:
            arguments = _json(call.arguments, spaced=False)
            function = {"call_id": call.id, "name": call.name, "arguments": arguments}
            items.append({"type": "function_call", "id": f"f{call.id}", **function})
        for call in turn.calls:
            items.append({"type": "function_call_output", "call_id": call.id, "output": call.result})
    items.append({"role": "user", "content": dialogue.last})
    tools: list[dict[str, Any]] = [
        {"type": "function", "name": name, "description": text, "parameters": TOOL, "strict": False}
        for name, text in dialogue.tools
    ]
    tools.append({"type": "web_search"})
    metadata = {"turn_started_at_unix_ms": "17", "window_number": "3"}
    body = {"model": "m", "input": items, "tools": tools, "store": False, "prompt_cache_key": "k"}
    return body | {"instructions": dialogue.system, "client_metadata": metadata}


def in_google(dialogue: Dialogue) -> dict[str, Any]:
    """Write each part of an answer as a separate content, and types in capitals."""
    contents: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for turn in dialogue.turns:
        contents.append({"role": "user", "parts": [*results, {"text": turn.user}]})
        parts: list[dict[str, Any]] = [{"text": turn.reasoning, "thought": True}] if turn.reasoning else []
        parts.append({"text": turn.text})
        for call in turn.calls:
            parts.append({"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}})
        contents += [{"role": "model", "parts": [part]} for part in parts]
        results = [
            {"functionResponse": {"id": c.id, "name": c.name, "response": {"output": c.result}}}
            for c in turn.calls
        ]
    contents.append({"role": "user", "parts": [*results, {"text": dialogue.last}]})
    properties = {"x": {"type": "STRING"}, "type": {"type": "INTEGER"}}
    schema = {"type": "OBJECT", "properties": properties}
    declared = [{"name": name, "description": text, "parameters": schema} for name, text in dialogue.tools]
    body: dict[str, Any] = {"contents": contents, "tools": [{"functionDeclarations": declared}]}
    return body | ({"systemInstruction": {"parts": [{"text": dialogue.system}]}} if dialogue.system else {})
