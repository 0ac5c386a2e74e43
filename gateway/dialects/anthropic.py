"""Anthropic Messages."""

import json
from collections.abc import Mapping
from typing import Any

from gateway.dialects.base import Finished, Reply, Stream, event
from gateway.dialects.reading import (
    arguments_text,
    canonical_request,
    flag_of,
    function_tool,
    model_of,
    objects,
    text_of,
    texts,
)
from gateway.errors import sentence_of
from gyre.contracts.errors import BadInput
from gyre.trajectory.answers import Answer, short_hash
from gyre.trajectory.canonical import (
    CanonicalRequest,
    Message,
    Role,
    ToolCall,
    assistant,
    without_billing,
)

SAMPLING = ("temperature", "top_p", "top_k")
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    410: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
OVERLOADED = 529
"""Anthropic's own status for "come back later"."""
SIGNATURE = "gyre"
"""Clients send a thinking block back with the signature it came with; the gateway does not check it."""


class AnthropicMessages:
    name, tool_prefix = "anthropic", "toolu_"

    def parse(self, body: Mapping[str, Any]) -> CanonicalRequest:
        system = map(without_billing, texts(body.get("system"), "system", "system"))
        kept = tuple(text for text in system if text)
        messages = [Message("system", kept)] if kept else []
        if not isinstance(body.get("messages"), list):
            raise BadInput("messages must be a list")
        for entry in objects(body["messages"], "messages"):
            messages += _read_messages(entry)
        return canonical_request(
            messages=messages,
            tools=[_read_tool(tool) for tool in objects(body.get("tools"), "tools")],
            model=model_of(body),
            stream=flag_of(body.get("stream"), "stream"),
            max_tokens=body.get("max_tokens"),
            sampling={name: body.get(name) for name in SAMPLING},
        )

    def whole(self, reply: Reply, finished: Finished) -> dict[str, Any]:
        message = _message(reply, finished.num_output_tokens)
        return message | {"content": _blocks(finished.answer), "stop_reason": _stop_reason(finished)}

    def stream(self, reply: Reply) -> Stream:
        return MessageStream(reply)

    def error(self, status: int, error: BaseException) -> tuple[int, dict[str, Any]]:
        status = OVERLOADED if status == 503 else status
        detail = {"type": ERROR_TYPES.get(status, "api_error"), "message": sentence_of(error)}
        return status, {"type": "error", "error": detail}


# Reading requests ------------------------------------------------------------------------------


def _read_messages(entry: Mapping[str, Any]) -> list[Message]:
    role, content = entry.get("role"), entry.get("content")
    if role == "assistant":
        return [_read_assistant(content)]
    if role not in ("user", "system"):
        raise BadInput(f"messages: role {role!r:.40} is not one of user, assistant, system")
    if not isinstance(content, list):
        return [Message(role, texts(content, "content", role))]
    return _split_results(role, content)


def _split_results(role: Role, blocks: list[Any]) -> list[Message]:
    """Make each tool result a separate message, at its place among the texts."""
    messages: list[Message] = []
    written: list[str] = []
    for block in objects(blocks, "content"):
        if block.get("type") != "tool_result":
            written += texts([block], "content", role)
            continue
        if written:
            messages.append(Message(role, tuple(written)))
            written = []
        content = texts(block.get("content"), "tool_result", "tool")
        call_id = text_of(block.get("tool_use_id"), "tool_use_id")
        messages.append(Message("tool", content, tool_call_id=call_id))
    if written or not messages:
        messages.append(Message(role, tuple(written)))
    return messages


def _read_assistant(content: Any) -> Message:
    if not isinstance(content, list):
        return assistant("".join(texts(content, "content", "assistant")))
    written: list[str] = []
    calls: list[ToolCall] = []
    reasoning: list[str] = []
    for block in objects(content, "content"):
        match block.get("type"):
            case "tool_use":
                name = text_of(block.get("name"), "the name of a tool_use")
                arguments = arguments_text(block.get("input"), "the input of a tool_use")
                calls.append(ToolCall(text_of(block.get("id"), "the id of a tool_use"), name, arguments))
            case "thinking":
                reasoning.append(text_of(block.get("thinking"), "thinking"))
            case "redacted_thinking":
                pass
            case _:
                written += texts([block], "content", "assistant")
    return assistant("".join(written), calls, reasoning="".join(reasoning) or None)


def _read_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if "input_schema" not in tool:
        raise BadInput(f"tool {tool.get('name')!r:.80} has no input_schema: only client tools are served")
    return function_tool(tool.get("name"), tool.get("description"), tool["input_schema"])


# Writing answers -------------------------------------------------------------------------------


class MessageStream(Stream):
    """One block after the other: thinking, text, tool calls."""

    ping = event("ping", {})

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._index, self._open = -1, ""

    def start(self) -> bytes:
        return event("message_start", {"message": _message(self.reply, 0)}) + self.ping

    def emit(self, reasoning: str, text: str) -> bytes:
        events = b""
        if reasoning:
            events += self._open_block("thinking", {"thinking": "", "signature": ""})
            events += self._delta({"type": "thinking_delta", "thinking": reasoning})
        if text:
            events += self._open_block("text", {"text": ""})
            events += self._delta({"type": "text_delta", "text": text})
        return events

    def finish(self, finished: Finished) -> bytes:
        calls = finished.answer.tool_calls
        events = b""
        if not calls and self._open != "text":
            # Some clients fail on an answer without blocks when they send it back in the next request.
            events += self._open_block("text", {"text": ""}) + self._delta({"type": "text_delta", "text": ""})
        events += self._close_block()
        for call in calls:
            events += self._open_block("tool_use", {"id": call.id, "name": call.name, "input": {}})
            events += self._delta({"type": "input_json_delta", "partial_json": call.arguments})
            events += self._close_block()
        usage = {"input_tokens": self.reply.num_input_tokens, "output_tokens": finished.num_output_tokens}
        delta = {"stop_reason": _stop_reason(finished), "stop_sequence": None}
        return events + event("message_delta", {"delta": delta, "usage": usage})

    def end(self, finished: Finished) -> bytes:
        return event("message_stop", {})

    def error(self, status: int, error: BaseException) -> bytes:
        return event("error", AnthropicMessages().error(status, error)[1])

    def _open_block(self, kind: str, empty: Mapping[str, Any]) -> bytes:
        """Open a block unless one of this kind is open already."""
        if self._open == kind:
            return b""
        closed = self._close_block()
        self._index, self._open = self._index + 1, kind
        block = {"type": kind, **empty}
        return closed + event("content_block_start", {"index": self._index, "content_block": block})

    def _close_block(self) -> bytes:
        if not self._open:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._delta({"type": "signature_delta", "signature": SIGNATURE})
        self._open = ""
        return signed + event("content_block_stop", {"index": self._index})

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return event("content_block_delta", {"index": self._index, "delta": delta})


def _message(reply: Reply, num_output_tokens: int) -> dict[str, Any]:
    return {
        "id": f"msg_{short_hash(reply.call_id)}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": reply.num_input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": num_output_tokens,
        },
    }


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": SIGNATURE})
    if answer.text or not answer.tool_calls:
        blocks.append({"type": "text", "text": answer.text})
    for call in answer.tool_calls:
        arguments = json.loads(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks


def _stop_reason(finished: Finished) -> str:
    if finished.answer.tool_calls:
        return "tool_use"
    return "max_tokens" if finished.truncated else "end_turn"
