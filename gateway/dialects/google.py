"""Google generateContent: model and method stand in the URL, so there is one dialect object a request."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.dialects.base import Finished, Reply, Stream, data_event
from gateway.errors import PromptTooLong, sentence_of
from gyre.contracts.json_text import compact_json
from gyre.trajectory.answers import Answer, short_hash
from gyre.trajectory.canonical import CanonicalRequest, ToolCall
from gyre.trajectory.dialects import from_google

STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    410: "FAILED_PRECONDITION",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
SIGNATURE = "Z3lyZQ=="
"""Clients send a signed part back with the signature that it came with; nobody checks it here."""
EMPTY_PARTS = [{"text": ""}]
"""Clients drop a turn from their history if a chunk of it has no parts."""


@dataclass(frozen=True, slots=True)
class GoogleGenerate:
    """``sse``: a stream of events (``alt=sse``), else of the elements of one JSON array."""

    model: str = ""
    streams: bool = False
    sse: bool = True
    name: str = "google"
    tool_prefix: str = "call_"

    def parse(self, body: Mapping[str, Any]) -> CanonicalRequest:
        """A countTokens request may hold the one that is meant."""
        meant = body.get("generateContentRequest")
        return from_google(meant if isinstance(meant, dict) else body, model=self.model, stream=self.streams)

    def whole(self, reply: Reply, finished: Finished) -> dict[str, Any]:
        parts = _parts(finished.answer)
        return _chunk(reply, parts, _reason(finished)) | _usage(reply, finished.num_output_tokens)

    def stream(self, reply: Reply) -> Stream:
        return EventStream(reply) if self.sse else ArrayStream(reply)

    def error(self, status: int, error: BaseException) -> tuple[int, dict[str, Any]]:
        message = sentence_of(error)
        if isinstance(error, PromptTooLong):
            limit = f"exceeds the maximum number of tokens allowed ({error.maximum})"
            message = f"The input token count ({error.num_tokens}) {limit}: {message}"
        return status, {"error": {"code": status, "message": message, "status": STATUS_NAMES.get(status)}}


class EventStream(Stream):
    """Chunks as server-sent events; a ping is a blank line: Google's clients take a comment for an answer."""

    ping = b"\n"

    def start(self) -> bytes:
        return self.ping

    def say(self, reasoning: str, text: str) -> bytes:
        said = [{"text": reasoning, "thought": True}] if reasoning else []
        if text:
            said.append({"text": text})
        return self._written(_chunk(self.reply, said) | _usage(self.reply, 0))

    def finish(self, finished: Finished) -> bytes:
        return b""

    def end(self, finished: Finished) -> bytes:
        """Calls and the ending are one chunk, so that a call is whole or was not said."""
        signed = bool(finished.answer.reasoning)
        calls = [_call(c, signed=signed and not i) for i, c in enumerate(finished.answer.tool_calls)]
        last = _chunk(self.reply, calls or EMPTY_PARTS, _reason(finished))
        return self._written(last | _usage(self.reply, finished.num_output_tokens))

    def error(self, status: int, error: BaseException) -> bytes:
        return self._written(GoogleGenerate().error(status, error)[1])

    def _written(self, document: Mapping[str, Any]) -> bytes:
        return data_event(document)


class ArrayStream(EventStream):
    """Chunks as the elements of a JSON array, in which blank lines say nothing either."""

    content_type = b"application/json"

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._separator = b""

    def start(self) -> bytes:
        return b"["

    def end(self, finished: Finished) -> bytes:
        return super().end(finished) + b"]"

    def error(self, status: int, error: BaseException) -> bytes:
        return super().error(status, error) + b"]"

    def _written(self, document: Mapping[str, Any]) -> bytes:
        separator, self._separator = self._separator, b",\n"
        return separator + compact_json(document)


def _parts(answer: Answer) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if answer.reasoning:
        parts.append({"text": answer.reasoning, "thought": True})
    if answer.text or not answer.tool_calls:
        parts.append({"text": answer.text})
    signed = bool(answer.reasoning)
    return parts + [_call(call, signed=signed and not i) for i, call in enumerate(answer.tool_calls)]


def _call(call: ToolCall, *, signed: bool) -> dict[str, Any]:
    part = {"functionCall": {"id": call.id, "name": call.name, "args": json.loads(call.arguments)}}
    return part | ({"thoughtSignature": SIGNATURE} if signed else {})


def _chunk(reply: Reply, parts: list[dict[str, Any]], reason: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if reason:
        candidate["finishReason"] = reason
    head = {"modelVersion": reply.model, "responseId": short_hash(reply.call_id)}
    return {"candidates": [candidate], **head}


def _usage(reply: Reply, num_output_tokens: int) -> dict[str, Any]:
    prompt = reply.num_input_tokens
    counted = {"promptTokenCount": prompt, "candidatesTokenCount": num_output_tokens}
    return {"usageMetadata": counted | {"totalTokenCount": prompt + num_output_tokens}}


def _reason(finished: Finished) -> str:
    return "MAX_TOKENS" if finished.truncated else "STOP"
