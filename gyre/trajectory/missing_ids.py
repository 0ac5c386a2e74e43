"""Calls that a client sends back without their ids: the record knows which answer they were.

Some clients of Google keep name and arguments only. Such calls are named by their place in their turn
(`canonical.unnamed`), and so are the results that belong to them. Here they get the ids of the recorded
answer that says the same and ends the same conversation.
"""

import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from gyre.trajectory.canonical import UNNAMED, Message, extend_key, message_bytes


def has_missing_ids(messages: Sequence[Message]) -> bool:
    """Whether any call came without its id."""
    return any(call.id.startswith(UNNAMED) for message in messages for call in message.tool_calls)


def saying(message: Message) -> bytes:
    """What an answer says, whatever the ids of its calls."""
    calls = tuple(replace(call, id="") for call in message.tool_calls)
    return hashlib.sha256(message_bytes(replace(message, tool_calls=calls))).digest()


def with_recorded_ids(
    first_key: str,
    messages: Sequence[Message],
    recorded: Mapping[bytes, Sequence[Message]],
    known: Container[str],
) -> tuple[Message, ...]:
    """The messages with the ids that the record has; those of answers it does not have stay as they are.

    ``recorded`` maps each `saying` to the answers that say it, oldest first; ``known`` holds the keys of
    the conversations that end in a recorded answer.
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
    same = [each for each in recorded.get(saying(message), ()) if extend_key(key, each) in known]
    # The newest, but rather one whose thoughts came back; no saying contains those.
    thought = [each for each in same if (each.reasoning or "") == (message.reasoning or "").strip()]
    return (thought or same or [message])[-1]
