"""Builds prompts: finds the recorded conversation that a request extends, and reuses its tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.live_attempt import LiveAttempt, Record
from gateway.rendering import Renderer
from gyre.contracts.lifecycle import NodeKind
from gyre.trajectory.arrays import Ids
from gyre.trajectory.canonical import CanonicalRequest, Message, chain, first_key, restore
from gyre.trajectory.missing_ids import has_missing_ids, with_recorded_ids
from gyre.trajectory.tree import Point


@dataclass(frozen=True, slots=True)
class Match:
    """The recorded point from which a request continues, and the text that is left to encode."""

    base: Point | None
    text: str
    conversation_key: str
    forked: bool


@dataclass(frozen=True, slots=True)
class Prompt:
    """The token ids of a request: the path to ``base``, taken from the tree, then ``suffix``."""

    base: Point | None
    num_reused: int
    ids: Ids
    sha256: str
    """SHA-256 of ``ids``."""
    suffix: Ids
    conversation_key: str
    in_thinking: bool
    """Whether the prompt ends inside a reasoning section that the template opened."""
    forked: bool
    """Whether the conversation has answers, but its last one is not in the record."""


def match_request(live: LiveAttempt, request: CanonicalRequest, renderer: Renderer) -> Match:
    """Find the longest recorded conversation that the request extends, and render what follows it.

    Raises BadInput when the chat template refuses the conversation.
    """
    record, scope = live.record, f"{request.model}|{renderer.template_sha256}"
    messages = restore(request.messages, record.answers)
    if has_missing_ids(messages):
        start = first_key(request.tools, scope)
        messages = with_recorded_ids(start, messages, record.sayings, record.sampled)
    live.newest = chain(request.tools, messages, scope, live.newest)
    keys = live.newest.keys
    spoken = [i for i, message in enumerate(messages) if message.role == "assistant"]
    found = next((i for i in reversed(spoken) if keys[i] in record.sampled), None)
    if found is not None:
        node = record.tree[_with_same_reasoning(record, record.sampled[keys[found]], messages[: found + 1])]
        stopped = renderer.ends_turn(node.token_ids)
        text = renderer.bridge(messages[found], messages[found + 1 :], request.tools, stopped=stopped)
        if text is not None:
            return Match(node.end, text, keys[-1], forked=found != spoken[-1])
    return Match(None, renderer.full(messages, request.tools), keys[-1], forked=bool(spoken))


def assemble_prompt(live: LiveAttempt, found: Match, suffix: Ids, renderer: Renderer) -> Prompt:
    """Join the reused ids of a match with ``suffix``, its encoded text."""
    reused = live.record.tree.path_ids(found.base)
    return Prompt(
        base=found.base,
        num_reused=len(reused),
        ids=np.concatenate([reused, suffix]),
        sha256=live.record.path_hash(found.base, suffix).hexdigest(),
        suffix=suffix,
        conversation_key=found.conversation_key,
        in_thinking=renderer.opens_thinking(found.text),
        forked=found.forked,
    )


def _with_same_reasoning(record: Record, ends: Sequence[int], messages: Sequence[Message]) -> int:
    """Choose, among siblings with equal text, the node whose reasoning came back; else the newest.

    The last answer's reasoning counts most, then that of the one before it: siblings may go on to give
    equal answers.
    """
    if len(ends) == 1:
        return ends[0]
    came_back = [message.reasoning or "" for message in reversed(messages) if message.role == "assistant"]

    def likeness(end: int) -> tuple[list[bool], int]:
        recorded = _reasoning_backwards(record, end)
        return [had == came.strip() for had, came in zip(recorded, came_back, strict=False)], end

    return max(ends, key=likeness)


def _reasoning_backwards(record: Record, end: int) -> Iterator[str]:
    """Yield the reasoning of a sampled node and of those before it, last one first."""
    point: Point | None = record.tree[end].end
    while point is not None:
        node = record.tree[point.node]
        if node.kind == NodeKind.SAMPLED:
            yield record.reasoning.get(node.index) or ""
        point = node.parent
