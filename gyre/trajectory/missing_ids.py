"""Restores the ids of tool calls that a client sent back without them, from recorded answers.

Some of Google's clients keep only name and arguments. Their calls are named by their place in the turn
(`canonical.unnamed`), and so are the results that belong to them. Here they get the ids of the recorded
answer that has the same content and ends the same conversation.
"""

import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from gyre.trajectory.canonical import UNNAMED, Message, extend_key, message_bytes


def has_missing_ids(messages: Sequence[Message]) -> bool:
    """Return whether any call came without its id."""
    return any(call.id.startswith(UNNAMED) for message in messages for call in message.tool_calls)


def saying(message: Message) -> bytes:
    """Hash an answer without the ids of its calls."""
    calls = tuple(replace(call, id="") for call in message.tool_calls)
    return hashlib.sha256(message_bytes(replace(message, tool_calls=calls))).digest()


def with_recorded_ids(
    first_key: str,
    messages: Sequence[Message],
    recorded: Mapping[bytes, Sequence[Message]],
    known: Container[str],
) -> tuple[Message, ...]:
    """Fill in recorded ids; answers that are not in the record stay as they are.

    ``recorded`` maps each `saying` to its answers, oldest first; ``known`` holds the keys of the
    conversations that end in a recorded answer.
    """
    named: list[Message] = []
    key, ids = first_key, dict[str, str]()
    for message in messages:
        if message.role == "assistant":
            found = _recorded(key, message, recorded, known)
            ids = {old.id: new.id for old, new in zip(message.tool_calls, found.tool_calls, strict=True)}
            message = found
        elif message.tool_call_id is not None:
            message = replace(message, tool_call_id=ids.get(message.tool_call_id, message.tool_call_id))
        named.append(message)
        key = extend_key(key, message)
    return tuple(named)


def _recorded(
    key: str, message: Message, recorded: Mapping[bytes, Sequence[Message]], known: Container[str]
) -> Message:
    if not has_missing_ids([message]):
        return message
    same = [answer for answer in recorded.get(saying(message), ()) if extend_key(key, answer) in known]
    # Prefer an answer whose reasoning came back too, which no key contains; then the newest.
    thought = [answer for answer in same if (answer.reasoning or "") == (message.reasoning or "").strip()]
    return (thought or same or [message])[-1]
