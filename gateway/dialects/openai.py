"""OpenAI Chat Completions."""

from collections.abc import Mapping
from typing import Any

from gateway.dialects.base import Finished, Reply, Stream, data_event
from gateway.errors import PromptTooLong, sentence_of
from gyre.trajectory.answers import Answer, short_hash
from gyre.trajectory.canonical import CanonicalRequest, ToolCall
from gyre.trajectory.dialects import from_openai

ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class OpenAIChat:
    name, tool_prefix = "openai", "call_"

    def parse(self, body: Mapping[str, Any]) -> CanonicalRequest:
        return from_openai(body)

    def whole(self, reply: Reply, finished: Finished) -> dict[str, Any]:
        message = {"role": "assistant", "refusal": None, **_said(finished.answer)}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _reason(finished)}
        head = _head(reply, "chat.completion")
        return head | {"choices": [choice], "usage": _usage(reply, finished)}

    def stream(self, reply: Reply) -> Stream:
        return ChunkStream(reply)

    def error(self, status: int, error: BaseException) -> tuple[int, dict[str, Any]]:
        return status, {"error": error_detail(status, error)}


class ChunkStream(Stream):
    """Chunks of one choice."""

    def start(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""}) + self.ping

    def say(self, reasoning: str, text: str) -> bytes:
        said = self._chunk({"reasoning_content": reasoning}) if reasoning else b""
        return said + (self._chunk({"content": text}) if text else b"")

    def finish(self, finished: Finished) -> bytes:
        calls = [{"index": i, **_call(call)} for i, call in enumerate(finished.answer.tool_calls)]
        said = self._chunk({"tool_calls": calls}) if calls else b""
        said += self._chunk({}, finish_reason=_reason(finished))
        if not self.reply.echo.get("include_usage"):
            return said
        usage = {"choices": [], "usage": _usage(self.reply, finished)}
        return said + data_event(_head(self.reply, "chat.completion.chunk") | usage)

    def end(self, finished: Finished) -> bytes:
        return b"data: [DONE]\n\n"

    def error(self, status: int, error: BaseException) -> bytes:
        return data_event({"error": error_detail(status, error)})

    def _chunk(self, delta: Mapping[str, Any], *, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return data_event(_head(self.reply, "chat.completion.chunk") | {"choices": [choice]})


def error_detail(status: int, error: BaseException) -> dict[str, Any]:
    """The ``error`` object of both OpenAI dialects."""
    kind = ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    message, code = sentence_of(error), None
    if isinstance(error, PromptTooLong):
        code = "context_length_exceeded"
        message = f"This model's maximum context length is {error.maximum} tokens: {message}"
    return {"message": message, "type": kind, "param": None, "code": code}


def _said(answer: Answer) -> dict[str, Any]:
    said: dict[str, Any] = {"content": answer.text or None}
    if answer.reasoning:
        said["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        said["tool_calls"] = [_call(call) for call in answer.tool_calls]
    return said


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _reason(finished: Finished) -> str:
    if finished.answer.tool_calls:
        return "tool_calls"
    return "length" if finished.truncated else "stop"


def _usage(reply: Reply, finished: Finished) -> dict[str, int]:
    prompt, completion = reply.num_input_tokens, finished.num_output_tokens
    counted = {"prompt_tokens": prompt, "completion_tokens": completion}
    return counted | {"total_tokens": prompt + completion}


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{short_hash(reply.call_id)}"
    return {"id": name, "object": kind, "created": reply.created, "model": reply.model}
