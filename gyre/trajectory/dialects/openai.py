"""OpenAI Chat Completions requests."""

from collections.abc import Mapping
from typing import Any

from gyre.contracts.errors import BadInput
from gyre.contracts.json_text import prompt_json
from gyre.trajectory.canonical import CanonicalRequest, Message, ToolCall, assistant
from gyre.trajectory.dialects.reading import (
    flag_of,
    function,
    model_of,
    noted_texts,
    objects,
    request,
    text_of,
    texts,
)

WISHES = ("temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty")


def from_openai(body: Mapping[str, Any]) -> CanonicalRequest:
    """An OpenAI Chat Completions request."""
    if body.get("n") not in (None, 1):
        raise BadInput(f"n = {body['n']!r:.40}: only 1 answer a call is served")
    if body.get("functions"):
        raise BadInput("functions: this old form is not served, use tools")
    if not isinstance(body.get("messages"), list):
        raise BadInput("messages must be a list")
    options = body.get("stream_options")
    if not isinstance(options, dict | None):
        raise BadInput("stream_options must be an object")
    newer = body.get("max_completion_tokens")
    return request(
        messages=[_message(entry) for entry in objects(body["messages"], "messages")],
        tools=[_tool(tool) for tool in objects(body.get("tools"), "tools")],
        model=model_of(body),
        stream=flag_of(body.get("stream"), "stream"),
        max_tokens=body.get("max_tokens") if newer is None else newer,
        wishes={name: body.get(name) for name in WISHES},
        echo={"include_usage": bool((options or {}).get("include_usage"))},
    )


def _message(entry: Mapping[str, Any]) -> Message:
    role, content = entry.get("role"), entry.get("content")
    match role:
        case "system" | "developer":
            return Message("system", texts(content, "content"))
        case "user":
            return Message("user", noted_texts(content, "content"))
        case "tool":
            answered = text_of(entry.get("tool_call_id"), "tool_call_id")
            return Message("tool", noted_texts(content, "content"), tool_call_id=answered)
        case "assistant":
            said = "".join(texts(content, "content", kinds=("text", "refusal")))
            calls = [_call(call) for call in objects(entry.get("tool_calls"), "tool_calls")]
            reasoning = text_of(entry.get("reasoning_content"), "reasoning_content")
            return assistant(said, calls, reasoning=reasoning or None)
        case _:
            raise BadInput(
                f"messages: role {role!r:.40} is not one of system, developer, user, assistant, tool"
            )


def _call(call: Mapping[str, Any]) -> ToolCall:
    stated = call.get("function")
    if not isinstance(stated, dict):
        raise BadInput("tool_calls: each call needs a function")
    arguments = stated.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else prompt_json(arguments)
    name = text_of(stated.get("name"), "tool_calls: the name of a function")
    return ToolCall(text_of(call.get("id"), "tool_calls: an id"), name, text)


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    stated = tool.get("function")
    if tool.get("type") != "function" or not isinstance(stated, dict):
        raise BadInput(f"tools: type {tool.get('type')!r:.40} is not served, only function")
    return function(stated.get("name"), stated.get("description"), stated.get("parameters"))
