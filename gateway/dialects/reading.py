"""Reading requests: checks that all dialects share. Each raises BadInput with one sentence."""

from collections.abc import Iterable, Mapping
from typing import Any

from gyre.contracts.errors import BadInput
from gyre.contracts.json_text import compact_json
from gyre.trajectory.canonical import CanonicalRequest, Message, Role
from gyre.trajectory.strict_json import read_json

NOTED_ROLES: frozenset[Role] = frozenset({"user", "tool"})
"""Roles in which a note replaces a part that is not text; in other roles such a part is refused.

The harness decides what it puts into a user's turn or a tool result (an image, a document), and repeats it in
every later request: a refusal would end the attempt, with a note the policy can work on.
"""
LARGEST_NUMBER = 1e300
"""Larger numbers are no sampling parameters, and some JSON columns reject them."""


def parse_body(raw: bytes) -> dict[str, Any]:
    """Return the JSON object of a request, as strict as `read_json`."""
    try:
        body = read_json(raw)
    except ValueError as error:
        raise BadInput(f"the request body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadInput("the request body must be a JSON object")
    return body


def canonical_request(
    *,
    messages: list[Message],
    tools: Iterable[dict[str, Any]],
    model: str,
    stream: bool,
    max_tokens: Any,
    sampling: Mapping[str, Any],
    echo: Mapping[str, Any] | None = None,
) -> CanonicalRequest:
    """Build the canonical request. ``sampling`` may hold anything; only its numbers are recorded."""
    if not messages:
        raise BadInput("messages: at least one message is needed")
    if max_tokens is not None and (
        not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1
    ):
        raise BadInput(f"max_tokens = {max_tokens!r:.40}: must be a whole number of at least 1")
    numbers = {name: value for name, value in sampling.items() if _is_number(value)}
    return CanonicalRequest(
        messages=tuple(messages),
        tools=tuple(tools),
        model=model,
        stream=stream,
        max_tokens=max_tokens,
        requested=numbers | {"model": model, "stream": stream, "max_tokens": max_tokens},
        echo=dict(echo or {}),
    )


def _is_number(value: Any) -> bool:
    # A bool is an int in Python.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER


def function_tool(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """Build a tool in OpenAI's function form, which chat templates take."""
    if not isinstance(name, str) or not name:
        raise BadInput("tools: each tool needs a name")
    function = {"name": name, "description": text_of(description, f"the description of tool {name!r}")}
    if not isinstance(parameters, dict | None):
        raise BadInput(f"tools: the parameters of {name!r} must be an object")
    return {"type": "function", "function": function | {"parameters": parameters or {}}}


def objects(value: Any, name: str) -> list[dict[str, Any]]:
    """Check a list of objects; None is the empty list."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise BadInput(f"{name} must be a list of objects")
    return value


def text_of(value: Any, name: str) -> str:
    """Check a text; None is the empty one."""
    if not isinstance(value, str | None):
        raise BadInput(f"{name} must be a text")
    return value or ""


def flag_of(value: Any, name: str) -> bool:
    """Check a boolean; None is False."""
    if not isinstance(value, bool | None):
        raise BadInput(f"{name} must be true or false")
    return bool(value)


def model_of(body: Mapping[str, Any]) -> str:
    """Return the model's name as it is recorded: Postgres takes no NUL."""
    return text_of(body.get("model"), "model").replace("\0", "\ufffd")


def arguments_text(value: Any, name: str) -> str:
    """Write tool arguments that are a JSON object on the wire as JSON text."""
    if not isinstance(value, dict | None):
        raise BadInput(f"{name} must be an object")
    return compact_json(value or {}).decode()


def texts(content: Any, name: str, role: Role, *, kinds: Iterable[str] = ("text",)) -> tuple[str, ...]:
    """Return the texts of a string or of a list of typed parts, without empty ones.

    A part of a type outside ``kinds`` becomes a note or is refused, see NOTED_ROLES.
    """
    if content is None or isinstance(content, str):
        return (content,) if content else ()
    return tuple(text for part in objects(content, name) if (text := _part(part, name, role, kinds)))


def _part(part: Mapping[str, Any], name: str, role: Role, kinds: Iterable[str]) -> str:
    kind: Any = part.get("type")
    if kind in kinds:
        return text_of(part.get("text"), f"{name}: the text of a part")
    if role in NOTED_ROLES and text_of(kind, f"{name}: the type of a part"):
        return left_out(kind)
    raise BadInput(f"{name}: a part of type {kind!r:.40} cannot be read, this model takes text only")


def left_out(kind: str) -> str:
    """Return the note that the policy reads in place of a part that is not text."""
    return f"[{kind:.80} left out: this model takes text only]"
