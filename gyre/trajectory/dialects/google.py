"""Google generateContent requests. Field names are read in camel case and in snake case, as Google does.

Rules, each named after what it is about:

* ``turn``: contents of the model that follow each other are one assistant message: clients keep each
  chunk of a stream as one.
* ``missing ids``: a response without an id answers the first call of that name in the turn before it
  that is still open. A call without an id is named by its place in its turn (`unnamed`), until the record
  gives it its own.
* ``schema types``: ``OBJECT`` in the parameters of a function is JSON schema's ``object``.
* ``one output``: a response that is only ``{"output": text}`` or ``{"result": text}`` is that text.
* ``hosted tool``: tools that Google's own servers run are left out; nobody could answer them here.
"""

from collections.abc import Mapping
from typing import Any

from gyre.contracts.errors import BadInput
from gyre.contracts.json_text import prompt_json
from gyre.trajectory.canonical import CanonicalRequest, Message, ToolCall, assistant, unnamed
from gyre.trajectory.dialects.reading import arguments_text, function, left_out, objects, request, text_of

WISHES = ("temperature", "topP", "topK", "seed", "presencePenalty", "frequencyPenalty")
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
NAMED_ARBITRARILY = ("default", "enum", "example", "examples", "const")
"""Keys of a schema whose values are no schemas."""


def from_google(body: Mapping[str, Any], *, model: str, stream: bool) -> CanonicalRequest:
    """A generateContent request; ``model`` and ``stream`` stand in its URL."""
    if _field(body, "cachedContent"):
        raise BadInput("cachedContent is not served: send the whole conversation as contents")
    config = _object(_field(body, "generationConfig"), "generationConfig")
    if _field(config, "candidateCount") not in (None, 1):
        raise BadInput("candidateCount: only 1 answer a call is served")
    if not isinstance(body.get("contents"), list):
        raise BadInput("contents must be a list")
    return request(
        messages=_system(body) + _conversation(objects(body["contents"], "contents")),
        tools=[_tool(declared) for declared in _declarations(body)],
        model=model.replace("\0", "\ufffd"),
        stream=stream,
        max_tokens=_field(config, "maxOutputTokens"),
        wishes={name: _field(config, name) for name in WISHES},
    )


def _system(body: Mapping[str, Any]) -> list[Message]:
    given = _field(body, "systemInstruction")
    if given is None:
        return []
    parts = [{"text": given}] if isinstance(given, str) else _parts(_object(given, "systemInstruction"))
    said = tuple(text for part in parts if (text := _text(part)))
    return [Message("system", said)] if said else []


def _conversation(contents: list[dict[str, Any]]) -> list[Message]:
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
            messages.append(_assistant(turn))
            turn, calls = [], list(messages[-1].tool_calls)
        messages += _user(content, calls)
    return messages + ([_assistant(turn)] if turn else [])


def _assistant(parts: list[dict[str, Any]]) -> Message:
    said: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for part in parts:
        if (call := _field(part, "functionCall")) is not None:
            calls.append(_call(_object(call, "functionCall"), len(calls)))
        elif text := _text(part):
            (reasoning if part.get("thought") else said).append(text)
    return assistant("".join(said), calls, reasoning="".join(reasoning) or None)


def _call(call: Mapping[str, Any], number: int) -> ToolCall:
    name = text_of(call.get("name"), "functionCall: name")
    call_id = text_of(call.get("id"), "functionCall: id") or unnamed(number)
    return ToolCall(call_id, name, arguments_text(call.get("args"), "functionCall: args"))


def _user(content: Mapping[str, Any], unanswered: list[ToolCall]) -> list[Message]:
    """Function responses stand as messages of their own, in their place among the texts.

    What they answer is taken out of ``unanswered``.
    """
    messages: list[Message] = []
    said: list[str] = []
    for part in _parts(content):
        if (response := _field(part, "functionResponse")) is None:
            said.append(left_out(" and ".join(part)) if part and "text" not in part else _text(part))
            continue
        if said:
            messages.append(_said(said))
            said = []
        messages.append(_response(_object(response, "functionResponse"), unanswered))
    return [*messages, _said(said)] if said or not messages else messages


def _said(texts: list[str]) -> Message:
    return Message("user", tuple(text for text in texts if text))


def _response(response: Mapping[str, Any], unanswered: list[ToolCall]) -> Message:
    name = text_of(response.get("name"), "functionResponse: name")
    given = text_of(response.get("id"), "functionResponse: id")
    same = (call for call in unanswered if (call.id == given if given else call.name == name))
    answered = next(same, None)
    if answered is not None:
        unanswered.remove(answered)
    said = [_output(_object(response.get("response"), "functionResponse: response"))]
    for part in objects(response.get("parts"), "functionResponse: parts"):
        said.append(left_out(" and ".join(part)))
    call_id = answered.id if answered is not None else given
    return Message("tool", tuple(text for text in said if text), tool_call_id=call_id)


def _output(response: Mapping[str, Any]) -> str:
    if len(response) == 1:
        (name, value), *_ = response.items()
        if name in OUTPUT_NAMES and isinstance(value, str):
            return value
    return prompt_json(response) if response else ""


def _text(part: Mapping[str, Any]) -> str:
    if "text" not in part:
        kinds = " and ".join(part) or "nothing"
        raise BadInput(f"contents: a part with {kinds:.80} cannot be read, this model takes text only")
    return text_of(part["text"], "contents: the text of a part")


def _declarations(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    declared: list[dict[str, Any]] = []
    for tool in objects(body.get("tools"), "tools"):
        functions = _field(tool, "functionDeclarations")
        unknown = {_camel(name) for name in tool} - HOSTED_TOOLS - {"functionDeclarations"}
        if unknown:
            raise BadInput(f"tools: {', '.join(sorted(unknown)):.80} is not served, only functions")
        declared += objects(functions, "functionDeclarations")
    return declared


def _tool(declared: Mapping[str, Any]) -> dict[str, Any]:
    schema = _field(declared, "parametersJsonSchema")
    parameters = _lower_types(declared.get("parameters")) if schema is None else schema
    return function(declared.get("name"), declared.get("description"), parameters)


def _lower_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_lower_types(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _lower_type(name, value) for name, value in schema.items()}


def _lower_type(name: str, value: Any) -> Any:
    if name in NAMED_ARBITRARILY:
        return value
    if name == "properties" and isinstance(value, dict):
        return {property: _lower_types(schema) for property, schema in value.items()}
    return value.lower() if name == "type" and isinstance(value, str) else _lower_types(value)


def _parts(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    return objects(content.get("parts"), "parts")


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise BadInput(f"{name} must be an object")
    return value or {}


def _field(document: Mapping[str, Any], name: str) -> Any:
    """The value under a camel case name, or under the same name in snake case."""
    if name in document:
        return document[name]
    return document.get("".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
