"""Anthropic Messages."""

import json
from collections.abc import Mapping
from typing import Any

from gateway.dialects.base import Finished, Reply, compact
from gateway.errors import sentence_of
from gyre.contracts.lifecycle import FinishReason
from gyre.trajectory.answers import Answer, short_hash
from gyre.trajectory.canonical import CanonicalRequest
from gyre.trajectory.dialects import from_anthropic

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    410: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
OVERLOADED = 529
"""Anthropic's own status for "come back later"."""


class AnthropicMessages:
    name, tool_prefix = "anthropic", "toolu_"
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'

    def parse(self, body: Mapping[str, Any]) -> CanonicalRequest:
        return from_anthropic(body)

    def whole(self, reply: Reply, finished: Finished) -> dict[str, Any]:
        message = _message(reply, finished.num_output_tokens)
        return message | {"content": _blocks(finished.answer), "stop_reason": _stop_reason(finished)}

    def start(self, reply: Reply) -> bytes:
        return _event("message_start", {"message": _message(reply, 0)}) + self.ping

    def content(self, reply: Reply, finished: Finished) -> bytes:
        blocks = enumerate(_blocks(finished.answer))
        usage = {"input_tokens": reply.num_input_tokens, "output_tokens": finished.num_output_tokens}
        delta = {"stop_reason": _stop_reason(finished), "stop_sequence": None}
        ending = _event("message_delta", {"delta": delta, "usage": usage})
        return b"".join(_block_events(index, block) for index, block in blocks) + ending

    def end(self, reply: Reply, finished: Finished) -> bytes:
        return _event("message_stop", {})

    def error(self, status: int, error: BaseException) -> tuple[int, dict[str, Any]]:
        status = OVERLOADED if status == 503 else status
        detail = {"type": ERROR_TYPES.get(status, "api_error"), "message": sentence_of(error)}
        return status, {"type": "error", "error": detail}

    def stream_error(self, status: int, error: BaseException) -> bytes:
        return _event("error", self.error(status, error)[1])


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
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": "gyre"})
    # An answer without any block is refused by some clients when it comes back in the next request.
    if answer.text or not answer.tool_calls:
        blocks.append({"type": "text", "text": answer.text})
    for call in answer.tool_calls:
        arguments = json.loads(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks


def _block_events(index: int, block: Mapping[str, Any]) -> bytes:
    match block["type"]:
        case "text":
            empty, deltas = {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            empty = {"thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case _:
            arguments = json.dumps(block["input"], ensure_ascii=False)
            empty, deltas = {"input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]
    events = [_event("content_block_start", {"index": index, "content_block": {**block, **empty}})]
    events += [_event("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
    return b"".join([*events, _event("content_block_stop", {"index": index})])


def _stop_reason(finished: Finished) -> str:
    if finished.answer.tool_calls:
        return "tool_use"
    return "max_tokens" if finished.finish_reason == FinishReason.LENGTH else "end_turn"


def _event(kind: str, data: Mapping[str, Any]) -> bytes:
    return f"event: {kind}\ndata: ".encode() + compact({"type": kind, **data}) + b"\n\n"
