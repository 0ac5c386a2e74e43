"""What the gateway holds of one attempt: its committed tree, its answers and its calls under way.

Everything here can be read again from Postgres; a restarted gateway does so at the first call.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy.orm import Session

from db import calls
from db.models import ModelCallRow, TreeNodeRow
from gateway.dialects.base import Finished
from gateway.errors import Unauthorized
from gateway.rendering import Renderer
from gyre.contracts.errors import Fenced
from gyre.contracts.ids import AttemptId, CallId
from gyre.contracts.lifecycle import AttemptStatus, CallStatus, FinishReason, NodeKind
from gyre.trajectory.answers import Answer
from gyre.trajectory.arrays import Ids, unpack_ids
from gyre.trajectory.canonical import CanonicalRequest, Chain, Message, chain, first_key, restore
from gyre.trajectory.missing_ids import has_missing_ids, saying, with_recorded_ids
from gyre.trajectory.tree import Node, Point, PrefixTree


@dataclass(frozen=True, slots=True)
class Match:
    """Where a request goes on, and the text that is to be encoded for it."""

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
    """Of ``ids``."""
    suffix: Ids
    conversation_key: str
    in_thinking: bool
    forked: bool
    """The conversation has answers, but no recorded one could be continued."""


@dataclass(eq=False, slots=True)
class LiveCall:
    """A call that is under way, or whose answer was not delivered yet."""

    id: CallId
    key: str
    index: int
    num_input_tokens: int
    connected: bool
    """Its client is still there."""
    task: "asyncio.Task[Finished] | None" = None
    """None: left in flight by a gateway that is gone."""
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    """Set each time that `said` has more to tell; only where answers are sent live."""
    said: Callable[[], tuple[str, str]] = lambda: ("", "")
    """Reasoning and text of the answer so far."""


@dataclass(eq=False, slots=True)
class LiveAttempt:
    """One attempt as this gateway knows it; there is one at most, or two would disagree."""

    attempt: AttemptId
    facts: calls.AttemptFacts
    tree: PrefixTree = field(default_factory=PrefixTree)
    path_hashes: "dict[int, hashlib._Hash]" = field(default_factory=dict)
    """Index of a node -> SHA-256 of all ids down to its end."""
    sampled: dict[str, list[int]] = field(default_factory=dict)
    """match_key -> indexes of the sampled nodes that end such a conversation, oldest first."""
    thoughts: dict[int, str | None] = field(default_factory=dict)
    """Index of a sampled node -> its reasoning, which no key contains."""
    recorded: dict[str, Message] = field(default_factory=dict)
    """Tool call id -> the answer that carried it."""
    sayings: defaultdict[bytes, list[Message]] = field(default_factory=lambda: defaultdict(list))
    """What answers with tool calls say, ids apart -> those answers, oldest first."""
    live: defaultdict[str, list[LiveCall]] = field(default_factory=lambda: defaultdict(list))
    commit_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_calls: int = 0
    num_in_flight: int = 0
    newest: Chain | None = None
    """The conversation that was asked for last: the next one most likely goes on from it."""
    num_characters: int = 0
    """Of the answers that are remembered."""
    next_index: int = 0
    """Of the next call, if no other gateway took it; never below ``num_calls``."""

    @property
    def busy(self) -> bool:
        """Whether a call is under way or a client still waits for one."""
        waited_for = (call.connected for calls_of_key in self.live.values() for call in calls_of_key)
        return self.num_in_flight > 0 or any(waited_for)

    @property
    def size(self) -> int:
        """Roughly what is held, in tokens: four characters count as one."""
        asked = self.newest.num_characters if self.newest else 0
        return self.tree.num_tokens + (self.num_characters + asked) // 4

    def take_index(self) -> int:
        """An index that no other call of this gateway has."""
        index = max(self.next_index, self.num_calls)
        self.next_index = index + 1
        return index

    def remember(self, node: Node, match_key: str | None, answer: Answer | None) -> None:
        """Take a committed node into the tree; ``answer`` is what a sampled one was read as."""
        self.tree.append(node)
        self.path_hashes[node.index] = self.path_hash(node.parent, node.token_ids)
        if match_key:
            self.sampled.setdefault(match_key, []).append(node.index)
        if answer:
            message = answer.message()
            self.thoughts[node.index] = answer.reasoning
            self.num_characters += answer.num_characters
            self.recorded |= {call.id: message for call in answer.tool_calls}
            if answer.tool_calls:
                self.sayings[saying(message)].append(message)

    def know(self, newer: "LiveAttempt") -> None:
        """Take over what another reading of the record found, at once: other calls look on. Calls under way
        stay."""
        self.tree, self.path_hashes = newer.tree, newer.path_hashes
        self.sampled, self.thoughts = newer.sampled, newer.thoughts
        self.recorded, self.sayings = newer.recorded, newer.sayings
        self.num_characters = newer.num_characters
        self.num_calls = max(self.num_calls, newer.num_calls)

    def path_hash(self, base: Point | None, ids: Ids) -> "hashlib._Hash":
        """SHA-256 of all ids down to ``base``, then ``ids``; reads only the latter if a node ends there."""
        if base is not None and base == self.tree[base.node].end:
            hashed = self.path_hashes[base.node].copy()
        else:
            hashed = hashlib.sha256(self.tree.path_ids(base).data)
        hashed.update(ids.data)
        return hashed

    def retry_of(self, key: str) -> LiveCall | None:
        """The call that an equal request repeats: its client went before it had the whole answer."""
        return next((call for call in self.live.get(key, ()) if not call.connected), None)

    def settle(self, call: LiveCall) -> None:
        """Forget a call that was delivered or has failed: an equal request is then another call."""
        if call in self.live.get(call.key, ()):
            self.live[call.key].remove(call)
        if not self.live.get(call.key):
            self.live.pop(call.key, None)


def load_attempt(session: Session, attempt: AttemptId) -> LiveAttempt:
    """Read an attempt. Raises Unauthorized if there is none, Fenced if it is sealed."""
    facts = calls.attempt_facts(session, attempt)
    if facts is None:
        raise Unauthorized("the token names an attempt that does not exist")
    if facts.status != AttemptStatus.OPEN:
        raise Fenced(f"{attempt} is sealed: no more calls are served")
    if not facts.has_calls:
        return LiveAttempt(attempt, facts)
    nodes, rows = calls.nodes(session, attempt), calls.calls(session, attempt)
    state = restored(attempt, facts, nodes, rows)
    for row in rows:
        if row.delivered_at is None and row.status != CallStatus.FAILED:
            call = LiveCall(CallId(row.id), row.request_key, row.index, row.num_input_tokens, connected=False)
            state.live[call.key].append(call)
    return state


def restored(
    attempt: AttemptId, facts: calls.AttemptFacts, nodes: Sequence[TreeNodeRow], rows: Sequence[ModelCallRow]
) -> LiveAttempt:
    """The tree, the keys and the answers of the rows; no call under way.

    ``rows`` are read behind ``nodes``, so that none of these is without its answer.
    """
    state = LiveAttempt(attempt, facts)
    index_of = {node.id: node.index for node in nodes}
    answers = {row.sampled_node_id: Answer.from_json(row.response) for row in rows if row.response}
    for row in nodes:
        parent = Point(index_of[row.parent_id], row.parent_offset) if row.parent_id else None
        node = Node(row.index, parent, row.position, NodeKind(row.kind), unpack_ids(row.token_ids))
        state.remember(node, row.match_key, answers.get(row.id))
    state.num_calls = max((row.index + 1 for row in rows), default=0)
    return state


def finished_of(row: ModelCallRow) -> Finished | None:
    """The answer of a committed row."""
    if row.status != CallStatus.COMMITTED or row.response is None:
        return None
    reason = FinishReason(row.finish_reason or "stop")
    return Finished(Answer.from_json(row.response), reason, row.num_output_tokens)


def match(state: LiveAttempt, request: CanonicalRequest, renderer: Renderer) -> Match:
    """The longest recorded conversation that the request goes on, and the text of what follows it.

    Raises BadInput when the chat template refuses the conversation.
    """
    messages, scope = restore(request.messages, state.recorded), f"{request.model}|{renderer.template_sha256}"
    if has_missing_ids(messages):
        start = first_key(request.tools, scope)
        messages = with_recorded_ids(start, messages, state.sayings, state.sampled)
    state.newest = chain(request.tools, messages, scope, state.newest)
    keys = state.newest.keys
    spoken = [i for i, message in enumerate(messages) if message.role == "assistant"]
    found = next((i for i in reversed(spoken) if keys[i] in state.sampled), None)
    if found is not None:
        node = state.tree[_same_thoughts(state, state.sampled[keys[found]], messages[: found + 1])]
        stopped = renderer.ends_turn(node.token_ids)
        text = renderer.bridge(messages[found], messages[found + 1 :], request.tools, stopped=stopped)
        if text is not None:
            return Match(node.end, text, keys[-1], forked=found != spoken[-1])
    return Match(None, renderer.full(messages, request.tools), keys[-1], forked=bool(spoken))


def _same_thoughts(state: LiveAttempt, ends: Sequence[int], messages: Sequence[Message]) -> int:
    """Of the nodes that end this conversation, the one whose thoughts came back with it, else the newest.

    The last answer's thoughts count most, then those of the one before it: equal answers may stand at the
    end of different ones.
    """
    if len(ends) == 1:
        return ends[0]
    came_back = [message.reasoning or "" for message in reversed(messages) if message.role == "assistant"]

    def likeness(end: int) -> tuple[list[bool], int]:
        recorded = _thoughts_before(state, end)
        return [had == came.strip() for had, came in zip(recorded, came_back, strict=False)], end

    return max(ends, key=likeness)


def _thoughts_before(state: LiveAttempt, end: int) -> Iterator[str]:
    """The reasoning of a sampled node and of those before it, the last one first."""
    point: Point | None = state.tree[end].end
    while point is not None:
        node = state.tree[point.node]
        if node.kind == NodeKind.SAMPLED:
            yield state.thoughts.get(node.index) or ""
        point = node.parent


def prompt_of(state: LiveAttempt, found: Match, suffix: Ids, renderer: Renderer) -> Prompt:
    """The ids of a matched request whose text was encoded to ``suffix``."""
    reused = state.tree.path_ids(found.base)
    return Prompt(
        base=found.base,
        num_reused=len(reused),
        ids=np.concatenate([reused, suffix]),
        sha256=state.path_hash(found.base, suffix).hexdigest(),
        suffix=suffix,
        conversation_key=found.conversation_key,
        in_thinking=renderer.opens_thinking(found.text),
        forked=found.forked,
    )
