"""The canonical form of a conversation: what two requests have in common whatever their spelling.

Rules, each named after what it undoes:

* ``billing header``: a system block that starts with BILLING_HEADER is dropped; its hash changes.
* ``cache_control``: wandering markers are not part of a message.
* ``list or string``: a text is a tuple of parts; a string is one part, empty parts are dropped.
* ``assistant text``: parts are joined and stripped: templates and harnesses trim differently.
* ``argument spacing``: tool arguments are compared as JSON values, and a call id that the policy's
  own answer carried stands for that answer as it was sampled (`restore`).
* ``reasoning``: not part of any key, because harnesses may leave it out.

System messages in the middle stay where they are. Nothing here is ever tokenised in place of sampled
ids: keys only find the node that holds them.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

BILLING_HEADER = "x-anthropic-billing-header:"
UNNAMED = "#"
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """JSON text, as it was written."""


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        return "\n".join(self.content)


@dataclass(frozen=True, slots=True)
class CanonicalRequest:
    """What a harness asks for. ``tools`` are in the OpenAI function form, in their order."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    model: str
    stream: bool
    max_tokens: int | None
    requested: dict[str, Any] = field(default_factory=dict[str, Any])
    """The sampling wishes that are recorded and ignored."""
    echo: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the request's own dialect must know of it to write the answer."""


def unnamed(number: int) -> str:
    """Stands for the id of a turn's call ``number`` that came without one."""
    return f"{UNNAMED}{number}"


def assistant(text: str, tool_calls: Sequence[ToolCall] = (), *, reasoning: str | None = None) -> Message:
    """An assistant message in canonical form."""
    stripped = text.strip()
    return Message("assistant", (stripped,) if stripped else (), tuple(tool_calls), reasoning=reasoning)


def restore(messages: Sequence[Message], recorded: Mapping[str, Message]) -> tuple[Message, ...]:
    """Put sampled answers back where a harness re-wrote them, found by tool call id.

    ``recorded`` maps each tool call id to the answer that carried it.
    """
    return tuple(_restored(message, recorded) for message in messages)


def _restored(message: Message, recorded: Mapping[str, Message]) -> Message:
    if not message.tool_calls:
        return message
    answer = recorded.get(message.tool_calls[0].id)
    if answer is None or [c.id for c in answer.tool_calls] != [c.id for c in message.tool_calls]:
        return message
    return answer


def chain_keys(tools: Sequence[Mapping[str, Any]], messages: Sequence[Message]) -> list[str]:
    """Key i stands for the tools and ``messages[:i + 1]``; hex, one a message."""
    key = hashlib.sha256(_dump(tools)).digest()
    keys: list[str] = []
    for message in messages:
        key = hashlib.sha256(key + message_bytes(message)).digest()
        keys.append(key.hex())
    return keys


def extend_key(key: str, message: Message) -> str:
    """The key of a conversation that ``message`` follows."""
    return hashlib.sha256(bytes.fromhex(key) + message_bytes(message)).hexdigest()


def request_key(conversation_key: str, model: str) -> str:
    """Equal for a retry and for a twin; ``stream`` and sampling wishes do not enter."""
    return hashlib.sha256(f"{conversation_key}|{model}".encode()).hexdigest()


def message_bytes(message: Message) -> bytes:
    """A message without its reasoning, equal for equal canonical messages only."""
    calls = [(call.id, call.name, _spaced_once(call.arguments)) for call in message.tool_calls]
    return _dump((message.role, message.content, calls, message.tool_call_id))


def whole_characters(value: Any) -> Any:
    """The same JSON value with halves of surrogate pairs replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {whole_characters(key): whole_characters(item) for key, item in value.items()}
    return [whole_characters(item) for item in value] if isinstance(value, list) else value


def _spaced_once(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return arguments


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
