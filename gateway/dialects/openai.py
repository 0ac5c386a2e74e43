"""OpenAI Chat Completions."""

from collections.abc import Mapping
from typing import Any

from gateway.dialects.base import Finished, Reply, Stream, data_event
from gateway.dialects.reading import (
    canonical_request,
    flag_of,
    function_tool,
    model_of,
    objects,
    text_of,
    texts,
)
from gateway.errors import PromptTooLong, sentence_of
from gyre.contracts.errors import BadInput
from gyre.contracts.json_text import prompt_json
from gyre.trajectory.answers import short_hash
from gyre.trajectory.canonical import CanonicalRequest, Message, ToolCall, assistant

SAMPLING = ("temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty")
ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class OpenAIChat:
    name, tool_prefix = "openai", "call_"

    def parse(self, body: Mapping[str, Any]) -> CanonicalRequest:
        if body.get("n") not in (None, 1):
            raise BadInput(f"n = {body['n']!r:.40}: only 1 answer a call is served")
        if body.get("functions"):
            raise BadInput("functions: this old form is not served, use tools")
        if not isinstance(body.get("messages"), list):
            raise BadInput("messages must be a list")
        options = body.get("stream_options")
        if not isinstance(options, dict | None):
            raise BadInput("stream_options must be an object")
        bound = body.get("max_completion_tokens")
        return canonical_request(
            messages=[_read_message(entry) for entry in objects(body["messages"], "messages")],
            tools=[_read_tool(tool) for tool in objects(body.get("tools"), "tools")],
            model=model_of(body),
            stream=flag_of(body.get("stream"), "stream"),
            max_tokens=body.get("max_tokens") if bound is None else bound,
            sampling={name: body.get(name) for name in SAMPLING},
            echo={"include_usage": bool((options or {}).get("include_usage"))},
        )

    def whole(self, reply: Reply, finished: Finished) -> dict[str, Any]:
        answer = finished.answer
        message: dict[str, Any] = {"role": "assistant", "refusal": None, "content": answer.text or None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["tool_calls"] = [_call(call) for call in answer.tool_calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(finished)}
        return _head(reply, "chat.completion") | {"choices": [choice], "usage": _usage(reply, finished)}

    def stream(self, reply: Reply) -> Stream:
        return ChunkStream(reply)

    def error(self, status: int, error: BaseException) -> tuple[int, dict[str, Any]]:
        return status, {"error": error_detail(status, error)}


# Reading requests ------------------------------------------------------------------------------


def _read_message(entry: Mapping[str, Any]) -> Message:
    role, content = entry.get("role"), entry.get("content")
    match role:
        case "system" | "developer":
            return Message("system", texts(content, "content", "system"))
        case "user":
            return Message("user", texts(content, "content", "user"))
        case "tool":
            call_id = text_of(entry.get("tool_call_id"), "tool_call_id")
            return Message("tool", texts(content, "content", "tool"), tool_call_id=call_id)
        case "assistant":
            text = "".join(texts(content, "content", "assistant", kinds=("text", "refusal")))
            calls = [_read_call(call) for call in objects(entry.get("tool_calls"), "tool_calls")]
            reasoning = text_of(entry.get("reasoning_content"), "reasoning_content")
            return assistant(text, calls, reasoning=reasoning or None)
        case _:
            raise BadInput(
                f"messages: role {role!r:.40} is not one of system, developer, user, assistant, tool"
            )


def _read_call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    if not isinstance(function, dict):
        raise BadInput("tool_calls: each call needs a function")
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else prompt_json(arguments)
    name = text_of(function.get("name"), "tool_calls: the name of a function")
    return ToolCall(text_of(call.get("id"), "tool_calls: an id"), name, text)


def _read_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise BadInput(f"tools: type {tool.get('type')!r:.40} is not served, only function")
    return function_tool(function.get("name"), function.get("description"), function.get("parameters"))


# Writing answers -------------------------------------------------------------------------------


class ChunkStream(Stream):
    """Chunks of one choice."""

    def start(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""}) + self.ping

    def emit(self, reasoning: str, text: str) -> bytes:
        events = self._chunk({"reasoning_content": reasoning}) if reasoning else b""
        return events + (self._chunk({"content": text}) if text else b"")

    def finish(self, finished: Finished) -> bytes:
        calls = [{"index": i, **_call(call)} for i, call in enumerate(finished.answer.tool_calls)]
        events = self._chunk({"tool_calls": calls}) if calls else b""
        events += self._chunk({}, finish_reason=_finish_reason(finished))
        if not self.reply.echo.get("include_usage"):
            return events
        usage = {"choices": [], "usage": _usage(self.reply, finished)}
        return events + data_event(_head(self.reply, "chat.completion.chunk") | usage)

    def end(self, finished: Finished) -> bytes:
        return b"data: [DONE]\n\n"

    def error(self, status: int, error: BaseException) -> bytes:
        return data_event({"error": error_detail(status, error)})

    def _chunk(self, delta: Mapping[str, Any], *, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return data_event(_head(self.reply, "chat.completion.chunk") | {"choices": [choice]})


def error_detail(status: int, error: BaseException) -> dict[str, Any]:
    """Build the ``error`` object of both OpenAI dialects."""
    kind = ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    message, code = sentence_of(error), None
    if isinstance(error, PromptTooLong):
        # Harnesses recognize this code and this sentence, and compact.
        code = "context_length_exceeded"
        message = f"This model's maximum context length is {error.maximum} tokens: {message}"
    return {"message": message, "type": kind, "param": None, "code": code}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish_reason(finished: Finished) -> str:
    if finished.answer.tool_calls:
        return "tool_calls"
    return "length" if finished.truncated else "stop"


def _usage(reply: Reply, finished: Finished) -> dict[str, int]:
    prompt, completion = reply.num_input_tokens, finished.num_output_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    completion_id = f"chatcmpl-{short_hash(reply.call_id)}"
    return {"id": completion_id, "object": kind, "created": reply.created, "model": reply.model}
