"""Anthropic Messages requests."""

from collections.abc import Mapping
from typing import Any

from gyre.contracts.errors import BadInput
from gyre.trajectory.canonical import (
    CanonicalRequest,
    Message,
    Role,
    ToolCall,
    assistant,
    without_billing,
)
from gyre.trajectory.dialects.reading import (
    arguments_text,
    flag_of,
    function,
    model_of,
    noted_texts,
    objects,
    request,
    text_of,
    texts,
)

WISHES = ("temperature", "top_p", "top_k")


def from_anthropic(body: Mapping[str, Any]) -> CanonicalRequest:
    """An Anthropic Messages request."""
    messages: list[Message] = []
    blocks = map(without_billing, texts(body.get("system"), "system"))
    system = tuple(block for block in blocks if block)
    if system:
        messages.append(Message("system", system))
    if not isinstance(body.get("messages"), list):
        raise BadInput("messages must be a list")
    for entry in objects(body["messages"], "messages"):
        messages += _messages(entry)
    return request(
        messages=messages,
        tools=[_tool(tool) for tool in objects(body.get("tools"), "tools")],
        model=model_of(body),
        stream=flag_of(body.get("stream"), "stream"),
        max_tokens=body.get("max_tokens"),
        wishes={name: body.get(name) for name in WISHES},
    )


def _messages(entry: Mapping[str, Any]) -> list[Message]:
    role, content = entry.get("role"), entry.get("content")
    if role == "assistant":
        return [_assistant(content)]
    if role not in ("user", "system"):
        raise BadInput(f"messages: role {role!r:.40} is not one of user, assistant, system")
    if not isinstance(content, list):
        return [Message(role, texts(content, "content"))]
    return _split_results(role, content)


def _split_results(role: Role, blocks: list[Any]) -> list[Message]:
    """Tool results stand as messages of their own, in their place among the texts."""
    messages: list[Message] = []
    said: list[str] = []
    for block in objects(blocks, "content"):
        if block.get("type") != "tool_result":
            said += noted_texts([block], "content") if role == "user" else texts([block], "content")
            continue
        if said:
            messages.append(Message(role, tuple(said)))
            said = []
        content = noted_texts(block.get("content"), "tool_result")
        answered = text_of(block.get("tool_use_id"), "tool_use_id")
        messages.append(Message("tool", content, tool_call_id=answered))
    if said or not messages:
        messages.append(Message(role, tuple(said)))
    return messages


def _assistant(content: Any) -> Message:
    if not isinstance(content, list):
        return assistant("".join(texts(content, "content")))
    said: list[str] = []
    calls: list[ToolCall] = []
    reasoning: list[str] = []
    for block in objects(content, "content"):
        match block.get("type"):
            case "tool_use":
                calls.append(_call(block))
            case "thinking":
                reasoning.append(text_of(block.get("thinking"), "thinking"))
            case "redacted_thinking":
                pass
            case _:
                said += texts([block], "content")
    return assistant("".join(said), calls, reasoning="".join(reasoning) or None)


def _call(block: Mapping[str, Any]) -> ToolCall:
    name = text_of(block.get("name"), "the name of a tool_use")
    arguments = arguments_text(block.get("input"), "the input of a tool_use")
    return ToolCall(text_of(block.get("id"), "the id of a tool_use"), name, arguments)


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if "input_schema" not in tool:
        raise BadInput(f"tool {tool.get('name')!r:.80} has no input_schema: only client tools are served")
    return function(tool.get("name"), tool.get("description"), tool["input_schema"])
