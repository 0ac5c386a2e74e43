"""The canonical form of a conversation: what two requests have in common whatever their spelling.

What must not break a match, each rule named after what it undoes:

* ``billing header``: the line of a system block that starts with BILLING_HEADER is dropped; its hash changes.
* ``cache_control``: wandering markers are not part of a message.
* ``list or string``: a text is a tuple of parts; a string is one part, empty parts are dropped.
* ``assistant text``: parts are joined and stripped: templates and harnesses trim differently.
* ``argument spacing``: tool arguments are compared as JSON values: neither spaces, nor the order of keys,
  nor how a letter is escaped enters.
* ``restored calls``: a call id that the policy's own answer carried stands for that answer as it was
  sampled (`restore`), whatever a harness made of it since: Claude Code puts ``replace_all: false`` into
  the input of Edit, JavaScript writes 1.0 as 1.
* ``missing ids``: calls that come back without an id are found in the record (`missing_ids`).
* ``reasoning``: not part of any key, because harnesses may leave it out.
* ``volatile fields``: only what is said is read. Ids of items, request metadata with counters and times,
  cache keys, ``stream`` and sampling wishes are no part of a conversation.

What must break one: other words, roles or results; other tools, or the same in another order; another
model's name; another chat template (`scope`).

System messages in the middle stay where they are. Nothing here is ever tokenised in place of sampled
ids: keys only find the node that holds them.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from gyre.contracts.json_text import canonical_json, compact_json

BILLING_HEADER = "x-anthropic-billing-header:"
UNNAMED = "#"
KEPT_CHARACTERS = 2_000
"""Of the arguments of a call whose key form is kept: most are shorter, ten thousand of them are little."""
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


@dataclass(frozen=True, slots=True)
class Chain:
    """A conversation and its keys, hex: ``keys[i]`` stands for scope, tools and ``messages[:i + 1]``."""

    start: str
    messages: tuple[Message, ...]
    keys: list[str]

    @property
    def num_characters(self) -> int:
        """Of what the messages say, calls apart."""
        return sum(len(text) for message in self.messages for text in message.content)


def unnamed(number: int) -> str:
    """Stands for the id of a turn's call ``number`` that came without one."""
    return f"{UNNAMED}{number}"


def without_billing(text: str) -> str:
    """A system block without the line before it whose hash changes with every request."""
    while text.startswith(BILLING_HEADER):
        text = text.partition("\n")[2]
    return text


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


def first_key(tools: Sequence[Mapping[str, Any]], scope: str = "") -> str:
    """The key of a conversation in which nothing was said yet.

    ``scope`` names what else must be equal for a match: model and chat template.
    """
    return hashlib.sha256(compact_json([scope, tools])).hexdigest()


def chain(
    tools: Sequence[Mapping[str, Any]],
    messages: Sequence[Message],
    scope: str = "",
    before: Chain | None = None,
) -> Chain:
    """A conversation with its keys. What it has in common with the one ``before`` is not hashed again."""
    start = first_key(tools, scope)
    keys = before.keys[: _num_common(before.messages, messages)] if before and before.start == start else []
    for message in messages[len(keys) :]:
        keys.append(extend_key(keys[-1] if keys else start, message))
    return Chain(start, tuple(messages), keys)


def _num_common(before: Sequence[Message], messages: Sequence[Message]) -> int:
    pairs = zip(before, messages, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def extend_key(key: str, message: Message) -> str:
    """The key of a conversation that ``message`` follows."""
    return hashlib.sha256(bytes.fromhex(key) + message_bytes(message)).hexdigest()


def request_key(conversation_key: str, model: str) -> str:
    """Equal for a retry and for a twin; ``stream`` and sampling wishes do not enter."""
    return hashlib.sha256(f"{conversation_key}|{model}".encode()).hexdigest()


def message_bytes(message: Message) -> bytes:
    """A message without its reasoning, equal for equal canonical messages only."""
    calls = [(call.id, call.name, _arguments(call)) for call in message.tool_calls]
    return compact_json((message.role, message.content, calls, message.tool_call_id))


def _arguments(call: ToolCall) -> str:
    spaced = _kept_spaced_once if len(call.arguments) <= KEPT_CHARACTERS else _spaced_once
    return spaced(call.arguments)


def whole_characters(value: Any) -> Any:
    """The same JSON value with halves of surrogate pairs replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {whole_characters(key): whole_characters(item) for key, item in value.items()}
    return [whole_characters(item) for item in value] if isinstance(value, list) else value


def _spaced_once(arguments: str) -> str:
    try:
        return canonical_json(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


_kept_spaced_once = lru_cache(maxsize=10_000)(_spaced_once)
"""Each request of a conversation has all its calls."""
