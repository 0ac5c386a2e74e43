"""Attempt tokens. A harness sends one as its API key, or as ``/t/<token>`` before the path.

``gy-<base64url(attempt id)>.<base64url(HMAC-SHA256(run.secret, attempt id))>``. The token names its
attempt, so checking it needs the run's secret and nothing else. Tokens are never logged or stored.
"""

import base64
import binascii
import hashlib
import hmac

from gyre.contracts.ids import AttemptId

PREFIX = "gy-"


def attempt_token(secret: bytes, attempt: AttemptId) -> str:
    """Return the token of an attempt, which is always the same under one run's secret."""
    return f"{PREFIX}{_encode(attempt.encode())}.{_encode(_mac(secret, attempt))}"


def attempt_of_token(secret: bytes, token: str) -> AttemptId | None:
    """Return the attempt that a token was made for, or None if this secret did not make it."""
    if not token.startswith(PREFIX) or not token.isascii():
        return None
    name, _, mac = token.removeprefix(PREFIX).partition(".")
    try:
        attempt = AttemptId(base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode())
    except (binascii.Error, UnicodeDecodeError):
        return None
    genuine = hmac.compare_digest(mac, _encode(_mac(secret, attempt)))
    return attempt if genuine else None


def _mac(secret: bytes, attempt: AttemptId) -> bytes:
    return hmac.new(secret, attempt.encode(), hashlib.sha256).digest()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
