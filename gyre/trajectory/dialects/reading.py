"""What the dialects have in common when they read a request. Raises BadInput with one sentence."""

from collections.abc import Iterable, Mapping
from typing import Any

from gyre.contracts.errors import BadInput
from gyre.contracts.json_text import compact_json
from gyre.trajectory.canonical import CanonicalRequest, Message
from gyre.trajectory.strict_json import read_json

LARGEST_WISH = 1e300
"""Larger numbers are no sampling wish, and not every JSON column takes them."""


def parse_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request, as strict as `read_json`."""
    try:
        body = read_json(raw)
    except ValueError as error:
        raise BadInput(f"the request body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadInput("the request body must be a JSON object")
    return body


def request(
    *,
    messages: list[Message],
    tools: Iterable[dict[str, Any]],
    model: str,
    stream: bool,
    max_tokens: Any,
    wishes: Mapping[str, Any],
    echo: Mapping[str, Any] | None = None,
) -> CanonicalRequest:
    """The canonical request; ``wishes`` may hold anything, only numbers are recorded."""
    if not messages:
        raise BadInput("messages: at least one message is needed")
    bound = bound_of(max_tokens)
    asked = {name: wish for name, wish in wishes.items() if _is_number(wish)}
    return CanonicalRequest(
        messages=tuple(messages),
        tools=tuple(tools),
        model=model,
        stream=stream,
        max_tokens=bound,
        requested=asked | {"model": model, "stream": stream, "max_tokens": bound},
        echo=dict(echo or {}),
    )


def bound_of(value: Any) -> int | None:
    """A wished number of output tokens."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise BadInput(f"max_tokens = {value!r:.40}: must be a whole number of at least 1")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST_WISH


def function(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """A tool in the form that chat templates take."""
    if not isinstance(name, str) or not name:
        raise BadInput("tools: each tool needs a name")
    stated = {"name": name, "description": text_of(description, f"the description of tool {name!r}")}
    if not isinstance(parameters, dict | None):
        raise BadInput(f"tools: the parameters of {name!r} must be an object")
    return {"type": "function", "function": stated | {"parameters": parameters or {}}}


def objects(value: Any, name: str) -> list[dict[str, Any]]:
    """A list of objects; nothing is the empty list."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise BadInput(f"{name} must be a list of objects")
    return value


def text_of(value: Any, name: str) -> str:
    """A text; nothing is the empty one."""
    if not isinstance(value, str | None):
        raise BadInput(f"{name} must be a text")
    return value or ""


def flag_of(value: Any, name: str) -> bool:
    """True or false; nothing is false."""
    if not isinstance(value, bool | None):
        raise BadInput(f"{name} must be true or false")
    return bool(value)


def model_of(body: Mapping[str, Any]) -> str:
    """The model's name as it is recorded: Postgres takes no NUL."""
    return text_of(body.get("model"), "model").replace("\0", "\ufffd")


def arguments_text(value: Any, name: str) -> str:
    """Tool arguments that are a JSON object on the wire, as text."""
    if not isinstance(value, dict | None):
        raise BadInput(f"{name} must be an object")
    return compact_json(value or {}).decode()


def texts(content: Any, name: str, *, kinds: Iterable[str] = ("text",)) -> tuple[str, ...]:
    """The parts of a text or of a list of typed parts. Empty ones are dropped, others than text refused."""
    if content is None or isinstance(content, str):
        return (content,) if content else ()
    return tuple(text for part in objects(content, name) if (text := _part(part, name, kinds)))


def noted_texts(content: Any, name: str, *, kinds: Iterable[str] = ("text",)) -> tuple[str, ...]:
    """The parts of a tool result or of a user's turn: here a part that is no text leaves a note in its place.

    The harness decides what a tool gives back (an image, a document) and where; it stands in all requests
    from then on, and the policy can work on.
    """
    if content is None or isinstance(content, str):
        return (content,) if content else ()
    parts = [_noted(part, name, kinds) for part in objects(content, name)]
    return tuple(text for text in parts if text)


def _noted(part: Mapping[str, Any], name: str, kinds: Iterable[str]) -> str:
    kind = text_of(part.get("type"), f"{name}: the type of a part")
    return left_out(kind) if kind and kind not in kinds else _part(part, name, kinds)


def left_out(kind: str) -> str:
    """What the policy reads in place of a part that is no text."""
    return f"[{kind:.80} left out: this model takes text only]"


def _part(part: Mapping[str, Any], name: str, kinds: Iterable[str]) -> str:
    kind = part.get("type")
    if kind not in kinds:
        raise BadInput(f"{name}: a part of type {kind!r:.40} cannot be read, this model takes text only")
    return text_of(part.get("text"), f"{name}: the text of a part")
