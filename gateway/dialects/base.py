"""The interface of a dialect, and writing code that all dialects share."""

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
        """Whether to report that the tokens ran out: not if the harness can go on with tool calls."""
        return self.finish_reason == FinishReason.LENGTH and not self.answer.tool_calls


@dataclass(frozen=True, slots=True)
class Reply:
    """The facts of an answer that are known before it is sampled."""

    call_id: str
    model: str
    num_input_tokens: int
    created: int
    """Unix seconds."""
    echo: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """CanonicalRequest.echo."""


class Dialect(Protocol):
    """A vendor's API: reads its requests and writes its answers. Pure, no I/O."""

    @property
    def name(self) -> str:
        """The name under which calls are recorded."""
        ...

    @property
    def tool_prefix(self) -> str:
        """The prefix of its tool call ids."""
        ...

    def parse(self, body: Mapping[str, Any]) -> CanonicalRequest:
        """Read a request. Raises BadInput for a body that is not one of the dialect."""
        ...

    def whole(self, reply: Reply, finished: Finished) -> dict[str, Any]:
        """Build the answer to a request without ``stream``."""
        ...

    def stream(self, reply: Reply) -> "Stream":
        """Return a writer for one streamed answer."""
        ...

    def error(self, status: int, error: BaseException) -> tuple[int, dict[str, Any]]:
        """Return status and body of a refused call."""
        ...


class Stream:
    """The events of one answer: `start`, `live` any number of times, `content`, `end`; `error` at any point.

    Dialects implement `start`, `emit`, `finish`, `end` and `error`. Nothing is emitted twice.
    """

    content_type = b"text/event-stream"
    ping = b": ping\n\n"

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self._sent = "", ""

    def start(self) -> bytes:
        """Write the first event, before anything is sampled. Its input usage is right where it has one."""
        raise NotImplementedError

    def emit(self, reasoning: str, text: str) -> bytes:
        """Write more reasoning, then more text; either may be empty."""
        raise NotImplementedError

    def finish(self, finished: Finished) -> bytes:
        """Write everything that follows the text, except the last event."""
        raise NotImplementedError

    def end(self, finished: Finished) -> bytes:
        """Write the last event. Only after it was sent is the answer delivered."""
        raise NotImplementedError

    def error(self, status: int, error: BaseException) -> bytes:
        """Write the event that ends a stream which has already started with a failure."""
        raise NotImplementedError

    def live(self, reasoning: str, text: str) -> bytes:
        """Write what is new in an answer so far. Raises EngineFailed if it does not extend what was sent."""
        sent, now = self._sent, (reasoning, text)
        if not all(new.startswith(old) for old, new in zip(sent, now, strict=True)):
            raise EngineFailed("the answer is not what its stream had begun to say")
        self._sent = now
        more = reasoning[len(sent[0]) :], text[len(sent[1]) :]
        return self.emit(*more) if any(more) else b""

    def content(self, finished: Finished) -> bytes:
        """Write all remaining events but the last."""
        answer = finished.answer
        return self.live(answer.reasoning or "", answer.text) + self.finish(finished)


def event(kind: str, data: Mapping[str, Any]) -> bytes:
    """Write a server-sent event whose data repeat its type."""
    return f"event: {kind}\ndata: ".encode() + compact_json({"type": kind, **data}) + b"\n\n"


def data_event(document: Mapping[str, Any]) -> bytes:
    """Write a server-sent event without a type."""
    return b"data: " + compact_json(document) + b"\n\n"
