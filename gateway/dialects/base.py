"""What a dialect must be able to say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gyre.contracts.lifecycle import FinishReason
from gyre.trajectory.answers import Answer
from gyre.trajectory.canonical import CanonicalRequest


@dataclass(frozen=True, slots=True)
class Finished:
    """A committed answer."""

    answer: Answer
    finish_reason: FinishReason
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Reply:
    """The facts of one answer on the wire that are known before it is sampled."""

    call_id: str
    model: str
    num_input_tokens: int
    created: int
    """Unix seconds."""
    include_usage: bool


class Dialect(Protocol):
    """Pure: requests in, bytes out."""

    name: str
    tool_prefix: str
    ping: bytes

    def parse(self, body: Mapping[str, Any]) -> CanonicalRequest: ...

    def whole(self, reply: Reply, finished: Finished) -> dict[str, Any]:
        """The answer of a call without ``stream``."""
        ...

    def start(self, reply: Reply) -> bytes:
        """The first event, sent before anything is sampled; its usage is right."""
        ...

    def content(self, reply: Reply, finished: Finished) -> bytes:
        """All events but the last."""
        ...

    def end(self, reply: Reply, finished: Finished) -> bytes:
        """The last event: only after it was written has the answer been delivered."""
        ...

    def error(self, status: int, error: BaseException) -> tuple[int, dict[str, Any]]:
        """Status and body of a refused call."""
        ...

    def stream_error(self, status: int, error: BaseException) -> bytes:
        """The event that says so in the middle of a stream."""
        ...


def compact(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
