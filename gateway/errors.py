"""The failures that a caller may see, each with its HTTP status; each dialect gives them its own shape.

BadInput (gyre.contracts.errors)
├── Unauthorized    401  no token of this run
├── UnknownRoute    404
├── PromptTooLong   400  the context is full; harnesses compact when they read it
├── BodyTooLarge    413
├── LimitReached    429  calls of the attempt, or concurrent calls
└── Refused         400  the engine will never take it (gateway.engines)

Fenced is 410. EngineFailed and a lost database are 503 (529 in Anthropic's dialect): the harness may retry.
"""

from sqlalchemy.exc import SQLAlchemyError

from gyre.contracts.errors import BadInput, Fenced, GyreError


class Unauthorized(BadInput):
    """The token is missing, belongs to another run, or names no attempt."""


class UnknownRoute(BadInput):
    """No route has this path."""


class BodyTooLarge(BadInput):
    """The request has more bytes than the run allows."""


class LimitReached(BadInput):
    """The attempt has made all its calls, or has too many under way."""


class PromptTooLong(BadInput):
    """The prompt has ``num_tokens`` tokens, and ``maximum`` are allowed."""

    def __init__(self, num_tokens: int, maximum: int) -> None:
        # Harnesses recognize this wording and compact their context.
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
    """Return the HTTP status of a failure."""
    if not isinstance(error, ANSWERED):
        return 500
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 503)


LONGEST_SENTENCE = 500
"""Characters. A sentence may quote the request, and that can be megabytes."""


def sentence_of(error: BaseException) -> str:
    """Return one line for the caller: our own sentences, no detail of the database or of a bug."""
    if isinstance(error, GyreError):
        line = " ".join(str(error).split())
        return line if len(line) <= LONGEST_SENTENCE else f"{line[:LONGEST_SENTENCE]}…"
    if isinstance(error, SQLAlchemyError):
        return "the record cannot be written at the moment"
    return "internal error of the gateway"
