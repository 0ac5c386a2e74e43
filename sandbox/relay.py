"""Relay between a sandbox and the gateway; our own on bare poll(), because it must not load asyncio.

It forwards the connections of a sandbox to the gateway's Unix socket as bytes and never reads them. Each
connection looks up the gateway by its path, so a restarted gateway is found again. While the gateway is away,
connections are held and retried rather than refused, because a harness gives up sooner than a gateway needs
to come back.
"""

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable

CHUNK_BYTES = 1 << 16
BUFFER_BYTES = 1 << 20
"""Backpressure: stop reading from one side while this much waits to be written to the other."""
HOLD_S = 120.0
RETRY_S = 0.2
MAX_CONNECTIONS = 256
READ, WRITE = select.POLLIN, select.POLLOUT
CLIENT, GATEWAY = 0, 1


class _Pair:
    """Two connected sockets; ``pending[i]`` waits to be written to side i (CLIENT, GATEWAY)."""

    def __init__(self, client: socket.socket) -> None:
        self.sides: list[socket.socket | None] = [client, None]
        self.pending = [bytearray(), bytearray()]
        self.ended = [False, False]
        self.since = time.monotonic()


class Relay:
    """Non-blocking forwarder driven by the poll loop of ``watch``.

    ``poll`` belongs to that loop; ``handlers`` maps a descriptor to the function called with its events.
    """

    def __init__(
        self, listener: socket.socket, target: str, poll: "select.poll",
        handlers: dict[int, Callable[[int], None]],
    ) -> None:  # fmt: skip
        self._listener, self._target, self._poll, self._handlers = listener, target, poll, handlers
        self._pairs: set[_Pair] = set()
        self._waiting: list[_Pair] = []
        listener.setblocking(False)
        handlers[listener.fileno()] = self._accept
        poll.register(listener.fileno(), READ)

    @property
    def retry_s(self) -> float | None:
        """Seconds until ``retry`` should be called; None while no connection waits for the gateway."""
        return RETRY_S if self._waiting else None

    def retry(self) -> None:
        """Try the gateway again for waiting connections, and drop those that have waited too long."""
        waiting, self._waiting = self._waiting, []
        for pair in waiting:
            if time.monotonic() - pair.since > HOLD_S:
                self._drop(pair)
            else:
                self._connect(pair)

    def close(self) -> None:
        """Close every connection and stop polling the listener, which its owner closes."""
        for pair in list(self._pairs):
            self._drop(pair)
        self._forget(self._listener)

    def _accept(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            client, _ = self._listener.accept()
            if len(self._pairs) >= MAX_CONNECTIONS:
                client.close()
                return
            client.setblocking(False)
            # Streamed answers are many small writes, which Nagle's algorithm would delay.
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = _Pair(client)
            self._pairs.add(pair)
            self._connect(pair)

    def _connect(self, pair: _Pair) -> None:
        gateway = socket.socket(socket.AF_UNIX)
        gateway.setblocking(False)
        try:
            _connect_by_path(gateway, self._target)
        except OSError:
            # The gateway is away or its queue is full; either passes.
            gateway.close()
            self._waiting.append(pair)
            return
        pair.sides[GATEWAY] = gateway
        for side, sock in enumerate(pair.sides):
            assert sock is not None
            self._handlers[sock.fileno()] = lambda events, side=side: self._step(pair, side, events)
            self._poll.register(sock.fileno(), READ)

    def _step(self, pair: _Pair, side: int, events: int) -> None:
        """Do what the events of one side allow, then set what each side is polled for."""
        # A hang-up alone may leave bytes to read; it is final once the end of the stream was read.
        gone = events & select.POLLERR or (events & select.POLLHUP and pair.ended[side])
        try:
            if gone:
                self._drop(pair)
                return
            if events & WRITE:
                self._flush(pair, side)
            if events & ~WRITE:
                self._read(pair, side)
        except OSError:
            self._drop(pair)
            return
        if pair.ended[GATEWAY] and not pair.pending[CLIENT]:
            self._drop(pair)  # a connection ends when the gateway's side does
            return
        for other, sock in enumerate(pair.sides):
            assert sock is not None
            room = len(pair.pending[1 - other]) < BUFFER_BYTES
            wanted = (READ if room and not pair.ended[other] else 0) | (WRITE if pair.pending[other] else 0)
            # poll reports a hang-up even if it is not asked for, so an idle side must not be polled at all.
            if wanted:
                self._poll.register(sock.fileno(), wanted)
            else:
                self._unregister(sock)

    def _read(self, pair: _Pair, side: int) -> None:
        sock = pair.sides[side]
        assert sock is not None
        try:
            data = sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        pair.pending[1 - side] += data
        pair.ended[side] = not data
        self._flush(pair, 1 - side)

    def _flush(self, pair: _Pair, side: int) -> None:
        """Write pending data to a side; once all is written, pass on that the other side has ended."""
        sock, data = pair.sides[side], pair.pending[side]
        assert sock is not None
        if data:
            with contextlib.suppress(BlockingIOError):
                del data[: sock.send(data)]
        if not data and pair.ended[1 - side]:
            sock.shutdown(socket.SHUT_WR)

    def _drop(self, pair: _Pair) -> None:
        self._pairs.discard(pair)
        if pair in self._waiting:
            self._waiting.remove(pair)
        for sock in pair.sides:
            if sock is not None:
                self._forget(sock)
                sock.close()

    def _forget(self, sock: socket.socket) -> None:
        self._handlers.pop(sock.fileno(), None)
        self._unregister(sock)

    def _unregister(self, sock: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._poll.unregister(sock.fileno())


def _connect_by_path(sock: socket.socket, path: str) -> None:
    """Connect to a path that may be longer than the 107 bytes that a socket address holds."""
    if len(os.fsencode(path)) < 108:
        sock.connect(path)
        return
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        sock.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)
