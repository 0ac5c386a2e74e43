"""Anthropic Messages."""

import json
from collections.abc import Mapping
from typing import Any

from gateway.dialects.base import Finished, Reply, Stream, event
from gateway.errors import sentence_of
from gyre.trajectory.answers import Answer, short_hash
from gyre.trajectory.canonical import CanonicalRequest
from gyre.trajectory.dialects import from_anthropic

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
"""Clients send a thinking block back with the signature that it came with; nobody checks it here."""


class AnthropicMessages:
    name, tool_prefix = "anthropic", "toolu_"

    def parse(self, body: Mapping[str, Any]) -> CanonicalRequest:
        return from_anthropic(body)

    def whole(self, reply: Reply, finished: Finished) -> dict[str, Any]:
        message = _message(reply, finished.num_output_tokens)
        return message | {"content": _blocks(finished.answer), "stop_reason": _stop_reason(finished)}

    def stream(self, reply: Reply) -> Stream:
        return MessageStream(reply)

    def error(self, status: int, error: BaseException) -> tuple[int, dict[str, Any]]:
        status = OVERLOADED if status == 503 else status
        detail = {"type": ERROR_TYPES.get(status, "api_error"), "message": sentence_of(error)}
        return status, {"type": "error", "error": detail}


class MessageStream(Stream):
    """One block after the other: thinking, text, tool calls."""

    ping = event("ping", {})

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._index, self._open = -1, ""

    def start(self) -> bytes:
        return event("message_start", {"message": _message(self.reply, 0)}) + self.ping

    def say(self, reasoning: str, text: str) -> bytes:
        said = b""
        if reasoning:
            said += self._in_block("thinking", {"thinking": "", "signature": ""})
            said += self._delta({"type": "thinking_delta", "thinking": reasoning})
        if text:
            said += self._in_block("text", {"text": ""})
            said += self._delta({"type": "text_delta", "text": text})
        return said

    def finish(self, finished: Finished) -> bytes:
        calls = finished.answer.tool_calls
        said = b""
        if not calls and self._open != "text":
            # Some clients refuse an answer without any block when it comes back in the next request.
            said += self._in_block("text", {"text": ""}) + self._delta({"type": "text_delta", "text": ""})
        said += self._close()
        for call in calls:
            said += self._in_block("tool_use", {"id": call.id, "name": call.name, "input": {}})
            said += self._delta({"type": "input_json_delta", "partial_json": call.arguments})
            said += self._close()
        usage = {"input_tokens": self.reply.num_input_tokens, "output_tokens": finished.num_output_tokens}
        delta = {"stop_reason": _stop_reason(finished), "stop_sequence": None}
        return said + event("message_delta", {"delta": delta, "usage": usage})

    def end(self, finished: Finished) -> bytes:
        return event("message_stop", {})

    def error(self, status: int, error: BaseException) -> bytes:
        return event("error", AnthropicMessages().error(status, error)[1])

    def _in_block(self, kind: str, empty: Mapping[str, Any]) -> bytes:
        """Open a block of this kind unless one is open."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._index, self._open = self._index + 1, kind
        block = {"type": kind, **empty}
        return closed + event("content_block_start", {"index": self._index, "content_block": block})

    def _close(self) -> bytes:
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
