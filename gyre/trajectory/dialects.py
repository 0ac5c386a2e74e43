"""Request bodies of the two dialects to canonical form. Raises BadInput with one sentence."""

import json
from collections.abc import Mapping
from typing import Any

from gyre.contracts.errors import BadInput
from gyre.trajectory.canonical import (
    BILLING_HEADER,
    CanonicalRequest,
    Message,
    Role,
    ToolCall,
    assistant,
    whole_characters,
)

WISHES = ("temperature", "top_p", "top_k", "stop", "stop_sequences", "seed", "n", "thinking", "tool_choice")
"""Sampling wishes that are recorded and ignored: sampling belongs to the run."""


def parse_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request.

    JavaScript harnesses cut strings inside a surrogate pair; such halves become U+FFFD, because
    neither a hash nor a tokenizer can take them.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the request body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadInput("the request body must be a JSON object")
    return whole_characters(body) if b"\\ud" in raw.lower() else body


def from_anthropic(body: Mapping[str, Any]) -> CanonicalRequest:
    """An Anthropic Messages request."""
    messages: list[Message] = []
    system = tuple(t for t in _texts(body.get("system"), "system") if not t.startswith(BILLING_HEADER))
    if system:
        messages.append(Message("system", system))
    for entry in _entries(body):
        messages += _anthropic_messages(entry)
    tools = tuple(_anthropic_tool(tool) for tool in _objects(body.get("tools"), "tools"))
    return _request(body, messages, tools, body.get("max_tokens"))


def from_openai(body: Mapping[str, Any]) -> CanonicalRequest:
    """An OpenAI Chat Completions request."""
    if body.get("n") not in (None, 1):
        raise BadInput(f"n = {body['n']!r}: only 1 answer a call is served")
    messages = [_openai_message(entry) for entry in _entries(body)]
    tools = tuple(_openai_tool(tool) for tool in _objects(body.get("tools"), "tools"))
    return _request(body, messages, tools, body.get("max_completion_tokens") or body.get("max_tokens"))


def _request(
    body: Mapping[str, Any], messages: list[Message], tools: tuple[dict[str, Any], ...], bound: Any
) -> CanonicalRequest:
    if not messages:
        raise BadInput("messages: at least one message is needed")
    if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool) or bound < 1):
        raise BadInput(f"max_tokens = {bound!r}: must be a whole number of at least 1")
    model, stream = str(body.get("model", "")).replace("\0", "\ufffd"), bool(body.get("stream"))
    wishes = {name: body[name] for name in WISHES if isinstance(body.get(name), int | float)}
    options = body.get("stream_options")
    return CanonicalRequest(
        messages=tuple(messages),
        tools=tools,
        model=model,
        stream=stream,
        max_tokens=bound,
        requested=wishes | {"model": model, "stream": stream, "max_tokens": bound},
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def _anthropic_messages(entry: Mapping[str, Any]) -> list[Message]:
    role, content = entry.get("role"), entry.get("content")
    if role == "assistant":
        return [_anthropic_assistant(content)]
    if role not in ("user", "system"):
        raise BadInput(f"messages: role {role!r} is not one of user, assistant, system")
    if not isinstance(content, list):
        return [Message(role, _texts(content, "content"))]
    return _split_results(role, content)


def _split_results(role: Role, blocks: list[Any]) -> list[Message]:
    """Tool results stand as messages of their own, in their place among the texts."""
    messages: list[Message] = []
    texts: list[str] = []
    for block in _objects(blocks, "content"):
        if block.get("type") != "tool_result":
            texts += _texts([block], "content")
            continue
        if texts:
            messages.append(Message(role, tuple(texts)))
            texts = []
        content = _texts(block.get("content"), "tool_result")
        messages.append(Message("tool", content, tool_call_id=str(block.get("tool_use_id", ""))))
    if texts or not messages:
        messages.append(Message(role, tuple(texts)))
    return messages


def _anthropic_assistant(content: Any) -> Message:
    if not isinstance(content, list):
        return assistant("".join(_texts(content, "content")))
    texts: list[str] = []
    calls: list[ToolCall] = []
    reasoning: list[str] = []
    for block in _objects(content, "content"):
        match block.get("type"):
            case "tool_use":
                arguments = json.dumps(block.get("input", {}), ensure_ascii=False)
                calls.append(ToolCall(str(block.get("id", "")), str(block.get("name", "")), arguments))
            case "thinking":
                reasoning.append(str(block.get("thinking", "")))
            case "redacted_thinking":
                pass
            case _:
                texts += _texts([block], "content")
    return assistant("".join(texts), calls, reasoning="".join(reasoning) or None)


def _anthropic_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if "input_schema" not in tool:
        raise BadInput(f"tool {tool.get('name')!r} has no input_schema: only client tools are served")
    return _function(tool.get("name"), tool.get("description"), tool["input_schema"])


def _openai_message(entry: Mapping[str, Any]) -> Message:
    role = entry.get("role")
    content = _texts(entry.get("content"), "content")
    match role:
        case "system" | "developer":
            return Message("system", content)
        case "user":
            return Message("user", content)
        case "tool":
            return Message("tool", content, tool_call_id=str(entry.get("tool_call_id", "")))
        case "assistant":
            calls = [_openai_call(call) for call in _objects(entry.get("tool_calls"), "tool_calls")]
            reasoning = entry.get("reasoning_content")
            return assistant("".join(content), calls, reasoning=str(reasoning) if reasoning else None)
        case _:
            raise BadInput(f"messages: role {role!r} is not one of system, developer, user, assistant, tool")


def _openai_call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    if not isinstance(function, dict):
        raise BadInput("tool_calls: each call needs a function")
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(str(call.get("id", "")), str(function.get("name", "")), text)


def _openai_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise BadInput(f"tools: type {tool.get('type')!r} is not served, only function")
    return _function(function.get("name"), function.get("description"), function.get("parameters"))


def _function(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    function = {"name": str(name), "description": str(description or "")}
    return {"type": "function", "function": function | {"parameters": parameters or {}}}


def _entries(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not isinstance(body.get("messages"), list):
        raise BadInput("messages must be a list")
    return _objects(body["messages"], "messages")


def _objects(value: Any, name: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise BadInput(f"{name} must be a list of objects")
    return value


def _texts(content: Any, name: str) -> tuple[str, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (content,) if content else ()
    return tuple(text for block in _objects(content, name) if (text := _block_text(block, name)))


def _block_text(block: Mapping[str, Any], name: str) -> str:
    if block.get("type") not in ("text", "input_text", "output_text"):
        raise BadInput(
            f"{name}: a part of type {block.get('type')!r} cannot be read, this model takes text only"
        )
    return str(block.get("text", ""))
