"""A request as raw bytes, valid or not, and what came back within a time limit."""

import io
import socket
import time
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse

BOUND_S = 30.0
"""A request that takes longer hangs, because engine and Postgres answer at once here."""


@dataclass
class Sending:
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    chunk: int | None = None
    """Size of chunks in bytes; None: sent with a content-length."""
    keep: float | None = None
    """Share of the bytes that is sent before the client disconnects; None: it stays."""

    def raw(self) -> bytes:
        framing = "transfer-encoding: chunked" if self.chunk else f"content-length: {len(self.body)}"
        lines = [f"{self.method} {self.path} HTTP/1.1", "host: gateway", "connection: close", framing]
        lines += [f"{name}: {value}" for name, value in self.headers]
        head = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"
        if not self.chunk:
            return head + self.body
        pieces = [self.body[at : at + self.chunk] for at in range(0, len(self.body), self.chunk)]
        return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])


@dataclass(frozen=True)
class Received:
    status: int
    content_type: str
    body: bytes
    whole: bool = field(default=True)
    """Whether the answer was complete before the connection ended."""


def exchange(port: int, sent: Sending) -> Received | None:
    """Send a request and read until the server closes; return None if nothing came back.

    Raises TimeoutError when there is no answer within the time limit.
    """
    raw = sent.raw()
    with socket.create_connection(("127.0.0.1", port), timeout=BOUND_S) as connection:
        if sent.keep is not None:
            _send(connection, raw[: int(len(raw) * sent.keep)])
            return None
        _send(connection, raw)
        answer = _read_all(connection, time.monotonic() + BOUND_S)
    return _parsed(answer, sent.method) if answer else None


def _send(connection: socket.socket, raw: bytes) -> None:
    try:
        connection.sendall(raw)
    except (BrokenPipeError, ConnectionResetError):
        """The server answered before it had read everything: go on to read the answer."""


def _read_all(connection: socket.socket, deadline: float) -> bytes:
    pieces: list[bytes] = []
    while True:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            piece = connection.recv(1 << 16)
        except ConnectionResetError:
            return b"".join(pieces)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


class _Bytes:
    """The part of a socket that http.client uses."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._raw)


def _parsed(raw: bytes, method: str) -> Received:
    response = HTTPResponse(_Bytes(raw), method=method)  # type: ignore[arg-type]
    response.begin()
    kind = response.headers.get("content-type", "")
    try:
        return Received(response.status, kind, response.read())
    except HTTPException:
        return Received(response.status, kind, raw, whole=False)
