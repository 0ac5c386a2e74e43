"""Forwards the connections of a sandbox to the gateway's Unix socket: bytes, never looked into.

The gateway is found by its path at each connection, so one that was restarted is found again; while
it is away connections are held and tried again rather than refused, because a harness gives up sooner
than a gateway needs to come back.
"""

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable

CHUNK_BYTES = 1 << 16
BUFFER_BYTES = 1 << 20
"""Read no more from one side while the other has this much to take."""
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
    """Non-blocking; driven by the poll loop of ``watch``.

    ``poll`` is the loop's; ``handlers`` maps a descriptor to what is called with its events.
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
        """How soon ``retry`` wants to be called; None while nobody waits for the gateway."""
        return RETRY_S if self._waiting else None

    def retry(self) -> None:
        """Try the gateway again for those that wait, and let go of those that waited too long."""
        waiting, self._waiting = self._waiting, []
        for pair in waiting:
            if time.monotonic() - pair.since > HOLD_S:
                self._drop(pair)
            else:
                self._connect(pair)

    def close(self) -> None:
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
            # Not there, or its queue is full: it comes back or it has room soon.
            gateway.close()
            self._waiting.append(pair)
            return
        pair.sides[GATEWAY] = gateway
        for side in (CLIENT, GATEWAY):
            self._watch(pair, side)

    def _watch(self, pair: _Pair, side: int) -> None:
        sock = pair.sides[side]
        assert sock is not None
        self._handlers[sock.fileno()] = lambda events: self._step(pair, side, events)
        self._poll.register(sock.fileno(), READ)

    def _step(self, pair: _Pair, side: int, events: int) -> None:
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
        self._settle(pair)

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
        """Write what waits for a side; pass on that the other one has ended once all is written."""
        sock, data = pair.sides[side], pair.pending[side]
        assert sock is not None
        if data:
            with contextlib.suppress(BlockingIOError):
                del data[: sock.send(data)]
        if not data and pair.ended[1 - side]:
            sock.shutdown(socket.SHUT_WR)

    def _settle(self, pair: _Pair) -> None:
        """Ask the loop for what each side can do next. The gateway's end ends the pair."""
        if pair.ended[GATEWAY] and not pair.pending[CLIENT]:
            self._drop(pair)
            return
        for side, sock in enumerate(pair.sides):
            assert sock is not None
            room = len(pair.pending[1 - side]) < BUFFER_BYTES
            wanted = (READ if room and not pair.ended[side] else 0) | (WRITE if pair.pending[side] else 0)
            # A hang-up is reported whether asked for or not: what wants nothing is not polled at all.
            if wanted:
                self._poll.register(sock.fileno(), wanted)
            else:
                self._unregister(sock)

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
    """Connect although the path may be longer than the 107 bytes that a socket address holds."""
    if len(os.fsencode(path)) < 108:
        sock.connect(path)
        return
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        sock.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)
