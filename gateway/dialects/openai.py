"""OpenAI Chat Completions."""

from collections.abc import Mapping
from typing import Any

from gateway.dialects.base import Finished, Reply, compact
from gateway.errors import PromptTooLong, sentence_of
from gyre.contracts.lifecycle import FinishReason
from gyre.trajectory.answers import Answer, short_hash
from gyre.trajectory.canonical import CanonicalRequest
from gyre.trajectory.dialects import from_openai

ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class OpenAIChat:
    name, tool_prefix = "openai", "call_"
    ping = b": ping\n\n"

    def parse(self, body: Mapping[str, Any]) -> CanonicalRequest:
        return from_openai(body)

    def whole(self, reply: Reply, finished: Finished) -> dict[str, Any]:
        message = {"role": "assistant", "refusal": None, **_said(finished.answer)}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _reason(finished)}
        head = _head(reply, "chat.completion")
        return head | {"choices": [choice], "usage": _usage(reply, finished)}

    def start(self, reply: Reply) -> bytes:
        return _chunk(reply, {"role": "assistant", "content": ""}) + self.ping

    def content(self, reply: Reply, finished: Finished) -> bytes:
        said = _said(finished.answer)
        if "tool_calls" in said:
            said["tool_calls"] = [{"index": i, **call} for i, call in enumerate(said["tool_calls"])]
        chunks = _chunk(reply, said) + _chunk(reply, {}, finish_reason=_reason(finished))
        if not reply.include_usage:
            return chunks
        last = _head(reply, "chat.completion.chunk") | {"choices": [], "usage": _usage(reply, finished)}
        return chunks + _data(last)

    def end(self, reply: Reply, finished: Finished) -> bytes:
        return b"data: [DONE]\n\n"

    def error(self, status: int, error: BaseException) -> tuple[int, dict[str, Any]]:
        kind = ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        message, code = sentence_of(error), None
        if isinstance(error, PromptTooLong):
            code = "context_length_exceeded"
            message = f"This model's maximum context length is {error.maximum} tokens: {message}"
        return status, {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def stream_error(self, status: int, error: BaseException) -> bytes:
        return _data(self.error(status, error)[1])


def _said(answer: Answer) -> dict[str, Any]:
    said: dict[str, Any] = {"content": answer.text or None}
    if answer.reasoning:
        said["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
    return said


def _reason(finished: Finished) -> str:
    if finished.answer.tool_calls:
        return "tool_calls"
    return "length" if finished.finish_reason == FinishReason.LENGTH else "stop"


def _usage(reply: Reply, finished: Finished) -> dict[str, int]:
    prompt, completion = reply.num_input_tokens, finished.num_output_tokens
    counted = {"prompt_tokens": prompt, "completion_tokens": completion}
    return counted | {"total_tokens": prompt + completion}


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{short_hash(reply.call_id)}"
    return {"id": name, "object": kind, "created": reply.created, "model": reply.model}


def _chunk(reply: Reply, delta: Mapping[str, Any], *, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _data(_head(reply, "chat.completion.chunk") | {"choices": [choice]})


def _data(document: Mapping[str, Any]) -> bytes:
    return b"data: " + compact(document) + b"\n\n"
