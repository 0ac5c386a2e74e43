"""The canonical form of a conversation: requests are normalized so that equal conversations hash equally.

Differences that must not break a match, each rule named after what it ignores:

* ``billing header``: the line of a system block that starts with BILLING_HEADER is dropped, because the
  hash in it changes with every request.
* ``cache_control``: cache markers move from request to request and are not part of a message.
* ``list or string``: a text is a tuple of parts; a string is one part, empty parts are dropped.
* ``assistant text``: parts are joined and stripped: templates and harnesses trim differently.
* ``argument spacing``: tool arguments are compared as JSON values; spaces, the order of keys and escapes do
  not count.
* ``restored calls``: where a message repeats a call id of a recorded answer, the answer as it was sampled
  replaces it (`restore`). Harnesses rewrite arguments: Claude Code adds ``replace_all: false`` to the input
  of Edit, JavaScript writes 1.0 as 1.
* ``missing ids``: calls that come back without an id are found in the record (`missing_ids`).
* ``reasoning``: not part of any key, because harnesses may leave it out.
* ``volatile fields``: only the content is read. Ids of items, request metadata with counters and times, cache
  keys, ``stream`` and sampling parameters are not part of a conversation.

Differences that must break a match: other texts, roles or results; other tools, or the same in another order;
another model name; another chat template (`scope`).

System messages in the middle stay where they are. A canonical text is never tokenized in place of sampled
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
CACHED_CHARACTERS = 2_000
"""Longest call arguments whose canonical form is cached. Most are shorter; 10,000 take little memory."""
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
    """A harness's request. ``tools`` are in the OpenAI function form, in their order."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    model: str
    stream: bool
    max_tokens: int | None
    requested: dict[str, Any] = field(default_factory=dict[str, Any])
    """Sampling parameters that the harness asked for: recorded, but the run's own are used."""
    echo: dict[str, Any] = field(default_factory=dict[str, Any])
    """Parts of the request that its dialect needs again to write the answer."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A conversation and its keys in hex: ``keys[i]`` stands for scope, tools and ``messages[:i + 1]``."""

    start: str
    messages: tuple[Message, ...]
    keys: list[str]

    @property
    def num_characters(self) -> int:
        """Characters of all texts, without tool calls."""
        return sum(len(text) for message in self.messages for text in message.content)


def unnamed(number: int) -> str:
    """Return a stand-in for the id of call ``number`` in a turn whose calls came without ids."""
    return f"{UNNAMED}{number}"


def without_billing(text: str) -> str:
    """Drop the billing lines from the start of a system block; the hash in them changes per request."""
    while text.startswith(BILLING_HEADER):
        text = text.partition("\n")[2]
    return text


def assistant(text: str, tool_calls: Sequence[ToolCall] = (), *, reasoning: str | None = None) -> Message:
    """Build an assistant message in canonical form."""
    stripped = text.strip()
    return Message("assistant", (stripped,) if stripped else (), tuple(tool_calls), reasoning=reasoning)


def restore(messages: Sequence[Message], recorded: Mapping[str, Message]) -> tuple[Message, ...]:
    """Put sampled answers back where a harness rewrote them, found by tool call id.

    ``recorded`` maps each tool call id to the answer that carried it.
    """
    restored: list[Message] = []
    for message in messages:
        answer = recorded.get(message.tool_calls[0].id) if message.tool_calls else None
        if answer and [c.id for c in answer.tool_calls] != [c.id for c in message.tool_calls]:
            answer = None  # calls were dropped or reordered: another conversation
        restored.append(answer or message)
    return tuple(restored)


def first_key(tools: Sequence[Mapping[str, Any]], scope: str = "") -> str:
    """Return the key of a conversation without messages.

    ``scope`` names what else must be equal for a match: model and chat template.
    """
    return hashlib.sha256(compact_json([scope, tools])).hexdigest()


def chain(
    tools: Sequence[Mapping[str, Any]],
    messages: Sequence[Message],
    scope: str = "",
    before: Chain | None = None,
) -> Chain:
    """Compute the keys of a conversation. The prefix that it shares with ``before`` is not hashed again."""
    start = first_key(tools, scope)
    keys: list[str] = []
    if before and before.start == start:
        pairs = zip(before.messages, messages, strict=False)
        num_common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        keys = before.keys[:num_common]
    for message in messages[len(keys) :]:
        keys.append(extend_key(keys[-1] if keys else start, message))
    return Chain(start, tuple(messages), keys)


def extend_key(key: str, message: Message) -> str:
    """Return the key of a conversation after one more message."""
    return hashlib.sha256(bytes.fromhex(key) + message_bytes(message)).hexdigest()


def request_key(conversation_key: str, model: str) -> str:
    """Return the key that a retry and a sibling share; ``stream`` and sampling parameters do not count."""
    return hashlib.sha256(f"{conversation_key}|{model}".encode()).hexdigest()


def message_bytes(message: Message) -> bytes:
    """Write a message without its reasoning; only equal canonical messages have equal bytes."""
    calls: list[tuple[str, str, str]] = []
    for call in message.tool_calls:
        canonical = _cached_arguments if len(call.arguments) <= CACHED_CHARACTERS else _canonical_arguments
        calls.append((call.id, call.name, canonical(call.arguments)))
    return compact_json((message.role, message.content, calls, message.tool_call_id))


def _canonical_arguments(arguments: str) -> str:
    try:
        return canonical_json(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


_cached_arguments = lru_cache(maxsize=10_000)(_canonical_arguments)
"""Cached because each request repeats all calls of its conversation."""
