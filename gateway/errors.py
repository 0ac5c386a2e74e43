"""What a caller can be told, with its HTTP status; each dialect puts it in its own shape.

BadInput (gyre.contracts.errors)
├── Unauthorized    401  no token of this run
├── UnknownRoute    404
├── PromptTooLong   400  the context is full; harnesses compact when they read it
├── BodyTooLarge    413
├── LimitReached    429  calls of the attempt, or calls at once
└── Refused         400  the engine will never take it (gateway.engines)

Fenced is 410, EngineFailed and a lost database are 503 (529 in Anthropic's words): the harness may come
back.
"""

from sqlalchemy.exc import SQLAlchemyError

from gyre.contracts.errors import BadInput, Fenced, GyreError


class Unauthorized(BadInput):
    """The token is missing, of another run, or names no attempt."""


class UnknownRoute(BadInput):
    """No route has this path."""


class BodyTooLarge(BadInput):
    """The request has more bytes than the run allows."""


class LimitReached(BadInput):
    """The attempt has made all its calls, or has too many under way."""


class PromptTooLong(BadInput):
    """``num_tokens`` of the prompt against ``maximum``, both in tokens."""

    def __init__(self, num_tokens: int, maximum: int) -> None:
        super().__init__(f"prompt is too long: {num_tokens} tokens > {maximum} maximum")
        self.num_tokens, self.maximum = num_tokens, maximum


ANSWERED = (GyreError, SQLAlchemyError)
"""Failures that become an error answer; anything else is a bug and a 500."""

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (Unauthorized, 401),
    (UnknownRoute, 404),
    (BodyTooLarge, 413),
    (LimitReached, 429),
    (BadInput, 400),
    (Fenced, 410),
)


def status_of(error: BaseException) -> int:
    """The HTTP status that says it."""
    if not isinstance(error, ANSWERED):
        return 500
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 503)


def sentence_of(error: BaseException) -> str:
    """What the caller may read: our own sentences, nothing of the database or of a bug."""
    if isinstance(error, GyreError):
        return _one_line(str(error))
    if isinstance(error, SQLAlchemyError):
        return "the record cannot be written at the moment"
    return "internal error of the gateway"


LONGEST_SENTENCE = 500
"""Characters; what was asked may be quoted in it, and that can be megabytes."""


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_SENTENCE else f"{line[:LONGEST_SENTENCE]}…"
