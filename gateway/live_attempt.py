"""One attempt in memory: its committed record and its open calls.

Everything here can be read again from Postgres; a restarted gateway does so at the attempt's first call.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from db import calls
from db.models import ModelCallRow, TreeNodeRow
from gateway.dialects.base import Finished
from gateway.errors import Unauthorized
from gyre.contracts.errors import Fenced
from gyre.contracts.ids import AttemptId, CallId
from gyre.contracts.lifecycle import AttemptStatus, CallStatus, FinishReason, NodeKind
from gyre.trajectory.answers import Answer
from gyre.trajectory.arrays import Ids, unpack_ids
from gyre.trajectory.canonical import Chain, Message
from gyre.trajectory.missing_ids import saying
from gyre.trajectory.tree import Node, Point, PrefixTree


@dataclass(eq=False, slots=True)
class LiveCall:
    """A call that is under way, or whose answer has not been delivered yet."""

    id: CallId
    key: str
    """Request key; an equal request has the same one."""
    index: int
    num_input_tokens: int
    connected: bool
    """Whether its client is still there."""
    task: "asyncio.Task[Finished] | None" = None
    """None for an orphan: a gateway that is gone left it in flight."""
    progressed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set each time `so_far` has more; only where answers are streamed live."""
    so_far: Callable[[], tuple[str, str]] = lambda: ("", "")
    """Decodes reasoning and text of the unfinished answer."""


@dataclass(eq=False, slots=True)
class Record:
    """The committed tree of one attempt and the indexes into it."""

    tree: PrefixTree = field(default_factory=PrefixTree)
    path_hashes: "dict[int, hashlib._Hash]" = field(default_factory=dict)
    """Node index -> SHA-256 of all ids from the root to the node's end."""
    sampled: dict[str, list[int]] = field(default_factory=dict)
    """match_key -> indexes of the sampled nodes that end such a conversation, oldest first."""
    reasoning: dict[int, str | None] = field(default_factory=dict)
    """Index of a sampled node -> its reasoning, which no key contains."""
    answers: dict[str, Message] = field(default_factory=dict)
    """Tool call id -> the answer that carried it."""
    sayings: defaultdict[bytes, list[Message]] = field(default_factory=lambda: defaultdict(list))
    """Hash of an answer with tool calls, without their ids -> the answers that have it, oldest first."""
    num_characters: int = 0
    """Total length of the answers."""

    def append(self, node: Node, match_key: str | None, answer: Answer | None) -> None:
        """Add a committed node; ``answer`` is the parsed text of a sampled one."""
        self.tree.append(node)
        self.path_hashes[node.index] = self.path_hash(node.parent, node.token_ids)
        if match_key:
            self.sampled.setdefault(match_key, []).append(node.index)
        if answer:
            message = answer.message()
            self.reasoning[node.index] = answer.reasoning
            self.num_characters += answer.num_characters
            self.answers |= {call.id: message for call in answer.tool_calls}
            if answer.tool_calls:
                self.sayings[saying(message)].append(message)

    def path_hash(self, base: Point | None, ids: Ids) -> "hashlib._Hash":
        """Return the SHA-256 of all ids from the root to ``base``, then ``ids``.

        Hashes only ``ids`` if ``base`` is the end of a node, as it almost always is.
        """
        if base is not None and base == self.tree[base.node].end:
            hashed = self.path_hashes[base.node].copy()
        else:
            hashed = hashlib.sha256(self.tree.path_ids(base).data)
        hashed.update(ids.data)
        return hashed


@dataclass(eq=False, slots=True)
class LiveAttempt:
    """One attempt as this gateway knows it. At most one exists per attempt, or two would disagree."""

    attempt: AttemptId
    facts: calls.AttemptFacts
    record: Record = field(default_factory=Record)
    """Replaced as a whole when the record is read again, so that concurrent calls never see half of it."""
    open_calls: defaultdict[str, list[LiveCall]] = field(default_factory=lambda: defaultdict(list))
    """Request key -> calls that an equal request may repeat."""
    commit_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_calls: int = 0
    num_in_flight: int = 0
    newest: Chain | None = None
    """The conversation of the last request: the next one most likely extends it."""
    next_index: int = 0
    """Index of the next call unless another gateway takes it; see `take_index`."""

    @property
    def busy(self) -> bool:
        """Whether a call is under way or a client still waits for one."""
        waited_for = (call.connected for equal in self.open_calls.values() for call in equal)
        return self.num_in_flight > 0 or any(waited_for)

    @property
    def size(self) -> int:
        """Rough memory use in tokens; four characters count as one."""
        requested = self.newest.num_characters if self.newest else 0
        return self.record.tree.num_tokens + (self.record.num_characters + requested) // 4

    def take_index(self) -> int:
        """Reserve an index that no other call of this gateway has."""
        index = max(self.next_index, self.num_calls)
        self.next_index = index + 1
        return index

    def adopt(self, record: Record, num_calls: int) -> None:
        """Replace the record by one that was read again; open calls stay."""
        self.record = record
        self.num_calls = max(self.num_calls, num_calls)

    def abandoned_call(self, key: str) -> LiveCall | None:
        """Return an open call with this key whose client left: an equal request is its retry."""
        return next((call for call in self.open_calls.get(key, ()) if not call.connected), None)

    def settle(self, call: LiveCall) -> None:
        """Forget a call that was delivered or has failed: an equal request then is a new call."""
        if call in self.open_calls.get(call.key, ()):
            self.open_calls[call.key].remove(call)
        if not self.open_calls.get(call.key):
            self.open_calls.pop(call.key, None)


def load_attempt(session: Session, attempt: AttemptId) -> LiveAttempt:
    """Read an attempt. Raises Unauthorized if it does not exist, Fenced if it is sealed."""
    facts = calls.attempt_facts(session, attempt)
    if facts is None:
        raise Unauthorized("the token names an attempt that does not exist")
    if facts.status != AttemptStatus.OPEN:
        raise Fenced(f"{attempt} is sealed: no more calls are served")
    live = LiveAttempt(attempt, facts)
    if not facts.has_calls:
        return live
    nodes, rows = calls.nodes(session, attempt), calls.calls(session, attempt)
    live.adopt(rebuild_record(nodes, rows), count_calls(rows))
    for row in rows:
        if row.delivered_at is None and row.status != CallStatus.FAILED:
            call = LiveCall(CallId(row.id), row.request_key, row.index, row.num_input_tokens, connected=False)
            live.open_calls[call.key].append(call)
    return live


def rebuild_record(nodes: Sequence[TreeNodeRow], rows: Sequence[ModelCallRow]) -> Record:
    """Rebuild the record from its rows. Read ``nodes`` before ``rows``, so that each has its answer."""
    record = Record()
    index_of = {node.id: node.index for node in nodes}
    answers = {row.sampled_node_id: Answer.from_json(row.response) for row in rows if row.response}
    for row in nodes:
        parent = Point(index_of[row.parent_id], row.parent_offset) if row.parent_id else None
        node = Node(row.index, parent, row.position, NodeKind(row.kind), unpack_ids(row.token_ids))
        record.append(node, row.match_key, answers.get(row.id))
    return record


def count_calls(rows: Sequence[ModelCallRow]) -> int:
    """Return how many call indexes the attempt has used."""
    return max((row.index + 1 for row in rows), default=0)


def finished_of(row: ModelCallRow) -> Finished | None:
    """Return the answer of a committed row; None for any other."""
    if row.status != CallStatus.COMMITTED or row.response is None:
        return None
    reason = FinishReason(row.finish_reason or "stop")
    return Finished(Answer.from_json(row.response), reason, row.num_output_tokens)
