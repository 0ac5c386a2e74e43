"""Google generateContent. Model and method are in the URL, so each request has its own dialect object.

Field names are read in camel case and in snake case, as Google does. Further rules:

* ``turn``: consecutive contents of the model are one assistant message, because clients keep each chunk of a
  stream as a content.
* ``missing ids``: a response without an id answers the first open call of that name in the turn before it. A
  call without an id is named by its place in its turn (`unnamed`) until the record supplies its id.
* ``schema types``: ``OBJECT`` in the parameters of a function is JSON schema's ``object``.
* ``one output``: a response that is only ``{"output": text}`` or ``{"result": text}`` is read as that text.
* ``hosted tool``: tools that run on Google's own servers are left out: nothing here could run them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.dialects.base import Finished, Reply, Stream, data_event
from gateway.dialects.reading import (
    NOTED_ROLES,
    arguments_text,
    canonical_request,
    function_tool,
    left_out,
    objects,
    text_of,
)
from gateway.errors import PromptTooLong, sentence_of
from gyre.contracts.errors import BadInput
from gyre.contracts.json_text import compact_json, prompt_json
from gyre.trajectory.answers import short_hash
from gyre.trajectory.canonical import CanonicalRequest, Message, Role, ToolCall, assistant, unnamed

SAMPLING = ("temperature", "topP", "topK", "seed", "presencePenalty", "frequencyPenalty")
HOSTED_TOOLS = frozenset(
    {
        "codeExecution",
        "enterpriseWebSearch",
        "fileSearch",
        "googleMaps",
        "googleSearch",
        "googleSearchRetrieval",
        "urlContext",
    }
)
OUTPUT_NAMES = ("output", "result")
DATA_KEYS = ("default", "enum", "example", "examples", "const")
"""Keys of a schema whose values are data, not schemas."""
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
"""Clients send a signed part back with the signature it came with; the gateway does not check it."""
EMPTY_PARTS: list[dict[str, Any]] = [{"text": ""}]
"""Clients drop a turn from their history if one of its chunks has no parts."""


@dataclass(frozen=True, slots=True)
class GoogleGenerate:
    """Dialect of one request; ``sse`` (``alt=sse``) chooses events for a stream, else it is a JSON array."""

    model: str = ""
    streams: bool = False
    sse: bool = True
    name: str = "google"
    tool_prefix: str = "call_"

    def parse(self, body: Mapping[str, Any]) -> CanonicalRequest:
        # A countTokens request may wrap the request that it asks about.
        wrapped = body.get("generateContentRequest")
        body = wrapped if isinstance(wrapped, dict) else body
        if _field(body, "cachedContent"):
            raise BadInput("cachedContent is not served: send the whole conversation as contents")
        config = _object(_field(body, "generationConfig"), "generationConfig")
        if _field(config, "candidateCount") not in (None, 1):
            raise BadInput("candidateCount: only 1 answer a call is served")
        if not isinstance(body.get("contents"), list):
            raise BadInput("contents must be a list")
        return canonical_request(
            messages=_read_system(body) + _read_conversation(objects(body["contents"], "contents")),
            tools=[_read_tool(declared) for declared in _declarations(body)],
            model=self.model.replace("\0", "\ufffd"),
            stream=self.streams,
            max_tokens=_field(config, "maxOutputTokens"),
            sampling={name: _field(config, name) for name in SAMPLING},
        )

    def whole(self, reply: Reply, finished: Finished) -> dict[str, Any]:
        answer = finished.answer
        parts: list[dict[str, Any]] = []
        if answer.reasoning:
            parts.append({"text": answer.reasoning, "thought": True})
        if answer.text or not answer.tool_calls:
            parts.append({"text": answer.text})
        chunk = _chunk(reply, parts + _call_parts(finished), _finish_reason(finished))
        return chunk | _usage(reply, finished.num_output_tokens)

    def stream(self, reply: Reply) -> Stream:
        return EventStream(reply) if self.sse else ArrayStream(reply)

    def error(self, status: int, error: BaseException) -> tuple[int, dict[str, Any]]:
        message = sentence_of(error)
        if isinstance(error, PromptTooLong):
            limit = f"exceeds the maximum number of tokens allowed ({error.maximum})"
            message = f"The input token count ({error.num_tokens}) {limit}: {message}"
        return status, {"error": {"code": status, "message": message, "status": STATUS_NAMES.get(status)}}


# Reading requests ------------------------------------------------------------------------------


def _read_system(body: Mapping[str, Any]) -> list[Message]:
    system = _field(body, "systemInstruction")
    if system is None:
        return []
    parts = [{"text": system}] if isinstance(system, str) else _parts(_object(system, "systemInstruction"))
    content = tuple(text for part in parts if (text := _part_text(part, "system")))
    return [Message("system", content)] if content else []


def _read_conversation(contents: list[dict[str, Any]]) -> list[Message]:
    messages: list[Message] = []
    turn: list[dict[str, Any]] = []
    calls: list[ToolCall] = []
    for content in contents:
        role = content.get("role", "user")
        if role == "model":
            turn += _parts(content)
            continue
        if role not in ("user", "function"):
            raise BadInput(f"contents: role {role!r:.40} is not one of user, model")
        if turn:
            messages.append(_read_assistant(turn))
            turn, calls = [], list(messages[-1].tool_calls)
        messages += _read_user(content, calls)
    return messages + ([_read_assistant(turn)] if turn else [])


def _read_assistant(parts: list[dict[str, Any]]) -> Message:
    written: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for part in parts:
        if (call := _field(part, "functionCall")) is not None:
            calls.append(_read_call(_object(call, "functionCall"), len(calls)))
        elif text := _part_text(part, "assistant"):
            (reasoning if part.get("thought") else written).append(text)
    return assistant("".join(written), calls, reasoning="".join(reasoning) or None)


def _read_call(call: Mapping[str, Any], number: int) -> ToolCall:
    name = text_of(call.get("name"), "functionCall: name")
    call_id = text_of(call.get("id"), "functionCall: id") or unnamed(number)
    return ToolCall(call_id, name, arguments_text(call.get("args"), "functionCall: args"))


def _read_user(content: Mapping[str, Any], open_calls: list[ToolCall]) -> list[Message]:
    """Make each function response a separate message, at its place among the texts.

    Removes the calls that it answers from ``open_calls``.
    """
    messages: list[Message] = []
    written: list[str] = []
    for part in _parts(content):
        if (response := _field(part, "functionResponse")) is None:
            written.append(_part_text(part, "user"))
            continue
        if written:
            messages.append(Message("user", tuple(filter(None, written))))
            written = []
        messages.append(_read_response(_object(response, "functionResponse"), open_calls))
    if written or not messages:
        messages.append(Message("user", tuple(filter(None, written))))
    return messages


def _read_response(response: Mapping[str, Any], open_calls: list[ToolCall]) -> Message:
    name = text_of(response.get("name"), "functionResponse: name")
    response_id = text_of(response.get("id"), "functionResponse: id")
    same = (call for call in open_calls if (call.id == response_id if response_id else call.name == name))
    answered = next(same, None)
    if answered is not None:
        open_calls.remove(answered)
    written = [_output(_object(response.get("response"), "functionResponse: response"))]
    for part in objects(response.get("parts"), "functionResponse: parts"):
        written.append(left_out(" and ".join(part)))
    call_id = answered.id if answered is not None else response_id
    return Message("tool", tuple(filter(None, written)), tool_call_id=call_id)


def _output(response: Mapping[str, Any]) -> str:
    if len(response) == 1:
        (name, value), *_ = response.items()
        if name in OUTPUT_NAMES and isinstance(value, str):
            return value
    return prompt_json(response) if response else ""


def _part_text(part: Mapping[str, Any], role: Role) -> str:
    if "text" in part:
        return text_of(part["text"], "contents: the text of a part")
    kinds = " and ".join(part)  # a part has no type: its only key says what it is
    if part and role in NOTED_ROLES:
        return left_out(kinds)
    raise BadInput(
        f"contents: a part with {kinds or 'nothing':.80} cannot be read, this model takes text only"
    )


def _declarations(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    declared: list[dict[str, Any]] = []
    for tool in objects(body.get("tools"), "tools"):
        functions = _field(tool, "functionDeclarations")
        unknown = {_camel(name) for name in tool} - HOSTED_TOOLS - {"functionDeclarations"}
        if unknown:
            raise BadInput(f"tools: {', '.join(sorted(unknown)):.80} is not served, only functions")
        declared += objects(functions, "functionDeclarations")
    return declared


def _read_tool(declared: Mapping[str, Any]) -> dict[str, Any]:
    schema = _field(declared, "parametersJsonSchema")
    parameters = _with_lower_types(declared.get("parameters")) if schema is None else schema
    return function_tool(declared.get("name"), declared.get("description"), parameters)


def _with_lower_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_lower_types(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    lowered: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "properties" and isinstance(value, dict):
            # Its keys are names of properties: one called "type" or "enum" is a schema all the same.
            lowered[name] = {key: _with_lower_types(inner) for key, inner in value.items()}
        elif name == "type" and isinstance(value, str):
            lowered[name] = value.lower()
        else:
            lowered[name] = value if name in DATA_KEYS else _with_lower_types(value)
    return lowered


def _parts(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    return objects(content.get("parts"), "parts")


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise BadInput(f"{name} must be an object")
    return value or {}


def _field(document: Mapping[str, Any], name: str) -> Any:
    """Return the value under a camel case name, or under the same name in snake case."""
    if name in document:
        return document[name]
    return document.get("".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


# Writing answers -------------------------------------------------------------------------------


class EventStream(Stream):
    """Chunks as server-sent events. A ping is a blank line: Google's clients take a comment for an answer."""

    ping = b"\n"

    def start(self) -> bytes:
        return self.ping

    def emit(self, reasoning: str, text: str) -> bytes:
        parts: list[dict[str, Any]] = [{"text": reasoning, "thought": True}] if reasoning else []
        if text:
            parts.append({"text": text})
        return self._element(_chunk(self.reply, parts) | _usage(self.reply, 0))

    def finish(self, finished: Finished) -> bytes:
        return b""

    def end(self, finished: Finished) -> bytes:
        # Calls share a chunk with the finish reason, so that a broken stream delivers all of them or none.
        parts = _call_parts(finished) or EMPTY_PARTS
        last = _chunk(self.reply, parts, _finish_reason(finished))
        return self._element(last | _usage(self.reply, finished.num_output_tokens))

    def error(self, status: int, error: BaseException) -> bytes:
        return self._element(GoogleGenerate().error(status, error)[1])

    def _element(self, document: Mapping[str, Any]) -> bytes:
        return data_event(document)


class ArrayStream(EventStream):
    """Chunks as the elements of a JSON array, between which blank lines are allowed too."""

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

    def _element(self, document: Mapping[str, Any]) -> bytes:
        separator, self._separator = self._separator, b",\n"
        return separator + compact_json(document)


def _call_parts(finished: Finished) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for call in finished.answer.tool_calls:
        function = {"id": call.id, "name": call.name, "args": json.loads(call.arguments)}
        parts.append({"functionCall": function})
    if parts and finished.answer.reasoning:
        # Google signs the first call that follows a thought.
        parts[0]["thoughtSignature"] = SIGNATURE
    return parts


def _chunk(reply: Reply, parts: list[dict[str, Any]], finish_reason: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish_reason:
        candidate["finishReason"] = finish_reason
    head = {"modelVersion": reply.model, "responseId": short_hash(reply.call_id)}
    return {"candidates": [candidate], **head}


def _usage(reply: Reply, num_output_tokens: int) -> dict[str, Any]:
    prompt = reply.num_input_tokens
    counted = {"promptTokenCount": prompt, "candidatesTokenCount": num_output_tokens}
    return {"usageMetadata": counted | {"totalTokenCount": prompt + num_output_tokens}}


def _finish_reason(finished: Finished) -> str:
    return "MAX_TOKENS" if finished.truncated else "STOP"
