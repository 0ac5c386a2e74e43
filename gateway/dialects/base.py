"""What a dialect must be able to say."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gyre.contracts.errors import EngineFailed
from gyre.contracts.json_text import compact_json
from gyre.contracts.lifecycle import FinishReason
from gyre.trajectory.answers import Answer
from gyre.trajectory.canonical import CanonicalRequest


@dataclass(frozen=True, slots=True)
class Finished:
    """A committed answer."""

    answer: Answer
    finish_reason: FinishReason
    num_output_tokens: int

    @property
    def truncated(self) -> bool:
        """Whether the client must know that the answer ran out of tokens: not if it may go on with calls."""
        return self.finish_reason == FinishReason.LENGTH and not self.answer.tool_calls


@dataclass(frozen=True, slots=True)
class Reply:
    """The facts of one answer on the wire that are known before it is sampled."""

    call_id: str
    model: str
    num_input_tokens: int
    created: int
    """Unix seconds."""
    echo: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """CanonicalRequest.echo."""


class Dialect(Protocol):
    """Pure: requests in, bytes out."""

    @property
    def name(self) -> str:
        """As it stands in the record."""
        ...

    @property
    def tool_prefix(self) -> str:
        """What its tool call ids begin with."""
        ...

    def parse(self, body: Mapping[str, Any]) -> CanonicalRequest:
        """Raises BadInput for a body that is no request of the dialect."""
        ...

    def whole(self, reply: Reply, finished: Finished) -> dict[str, Any]:
        """The answer of a call without ``stream``."""
        ...

    def stream(self, reply: Reply) -> "Stream":
        """A writer of one streamed answer."""
        ...

    def error(self, status: int, error: BaseException) -> tuple[int, dict[str, Any]]:
        """Status and body of a refused call."""
        ...


class Stream:
    """The events of one answer, in the order of the methods. What was said live is not said again."""

    content_type = b"text/event-stream"
    ping = b": ping\n\n"

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self._told = "", ""

    def start(self) -> bytes:
        """The first event, sent before anything is sampled; its usage is right where it has one."""
        raise NotImplementedError

    def say(self, reasoning: str, text: str) -> bytes:
        """More reasoning, more text, in this order; either may be empty."""
        raise NotImplementedError

    def finish(self, finished: Finished) -> bytes:
        """All that follows the text, but for the last event."""
        raise NotImplementedError

    def end(self, finished: Finished) -> bytes:
        """The last event: only after it was written has the answer been delivered."""
        raise NotImplementedError

    def error(self, status: int, error: BaseException) -> bytes:
        """The event that says so in the middle of a stream, instead of anything more."""
        raise NotImplementedError

    def live(self, reasoning: str, text: str) -> bytes:
        """What of these, which only grow, was not said yet. Raises EngineFailed if they changed instead."""
        told, now = self._told, (reasoning, text)
        if not all(new.startswith(old) for old, new in zip(told, now, strict=True)):
            raise EngineFailed("the answer is not what its stream had begun to say")
        self._told = now
        more = reasoning[len(told[0]) :], text[len(told[1]) :]
        return self.say(*more) if any(more) else b""

    def content(self, finished: Finished) -> bytes:
        """All events but the last."""
        answer = finished.answer
        return self.live(answer.reasoning or "", answer.text) + self.finish(finished)


def event(kind: str, data: Mapping[str, Any]) -> bytes:
    """A server-sent event whose data repeat its type."""
    return f"event: {kind}\ndata: ".encode() + compact_json({"type": kind, **data}) + b"\n\n"


def data_event(document: Mapping[str, Any]) -> bytes:
    """A server-sent event without a type."""
    return b"data: " + compact_json(document) + b"\n\n"
