"""The load generator: raw asyncio connections, one per conversation, as each harness has its own.

Latency runs from writing a request to the last byte of its answer, so it includes what the generator's share
of the machine costs the server under test.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from benchmarks.gateway_conversation import NUM_TURNS, HarnessConversation

TIMEOUT_S = 60.0
LAST_CHUNK = b"\r\n0\r\n\r\n"


class LoadConnection(asyncio.Protocol):
    """A keep-alive connection that reads complete answers."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[bytes] | None = None
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._answer is not None and self._whole():
            self._answer.set_result(bytes(self._received))
            self._answer, self._received = None, bytearray()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None:
            self._answer.set_exception(ConnectionError("the server closed the connection"))

    def ask(self, request: bytes) -> "asyncio.Future[bytes]":
        """Write a request; the future gets head and body of the answer as they came."""
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._answer

    def _whole(self) -> bool:
        if self._received.endswith(LAST_CHUNK):
            return True
        head, found, body = self._received.partition(b"\r\n\r\n")
        _, named, length = bytes(head).lower().partition(b"content-length:")
        return bool(found and named) and len(body) >= int(length.split(b"\r\n", 1)[0])


@dataclass
class Measured:
    """Measurements of one stretch of load."""

    latencies_ms: list[float] = field(default_factory=list)
    due_ms: list[float] = field(default_factory=list)
    """Open loop: from when a request was due to the last byte of its answer."""
    late_ms: list[float] = field(default_factory=list)
    """Open loop: how much later than due a request was started."""
    body_bytes: list[int] = field(default_factory=list)
    num_failed: int = 0
    first_failure: str = ""
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Calls answered per second."""
        return len(self.latencies_ms) / self.seconds

    def percentile(self, fraction: float, of: list[float] | None = None) -> float:
        """Return a percentile of the latencies, or of other values, in milliseconds."""
        values = sorted(self.latencies_ms if of is None else of)
        return round(values[min(len(values) - 1, int(fraction * len(values)))], 2) if values else float("nan")


class Load:
    """Conversations with one server; a new one replaces each that is over."""

    def __init__(
        self,
        port_of: Callable[[str], int],
        source: Iterator[HarnessConversation],
        concurrent: int,
        headers: Iterable[str],
    ) -> None:
        """``port_of`` returns the port that serves the conversation with a token."""
        self._port_of, self._source = port_of, source
        self._headers = "".join(f"{header}\r\n" for header in headers)
        self._idle = [next(source) for _ in range(concurrent)]
        self._connections: dict[str, LoadConnection] = {}

    async def stagger(self, workers: int) -> None:
        """Advance the conversations to evenly spread turns, as in the middle of a long run.

        Raises RuntimeError if a call fails.
        """
        waiting, measured = list(enumerate(self._idle)), Measured()
        self._idle = []

        async def work() -> None:
            while waiting:
                number, conversation = waiting.pop(0)
                while conversation.turn < number % NUM_TURNS and not measured.num_failed:
                    conversation = await self._call(conversation, measured)
                self._idle.append(conversation)

        await asyncio.gather(*(work() for _ in range(workers)))
        if measured.num_failed:
            raise RuntimeError(f"the server failed while warming up: {measured.first_failure}")
        random.Random("order").shuffle(self._idle)

    def go_to(self, port_of: Callable[[str], int]) -> None:
        """Continue all conversations with another server."""
        self.close()
        self._connections.clear()
        self._port_of = port_of

    async def closed(self, workers: int, seconds: float) -> Measured:
        """Keep ``workers`` calls under way at any time, to measure what the server can carry."""
        measured, begun = Measured(), time.perf_counter()

        async def work() -> None:
            while time.perf_counter() - begun < seconds:
                await self._turn(measured)

        await asyncio.gather(*(work() for _ in range(workers)))
        measured.seconds = time.perf_counter() - begun
        return measured

    async def open(self, rate: float, seconds: float) -> Measured:
        """Start calls at random times, ``rate`` per second on average, whether or not others are done."""
        measured, rng, begun = Measured(), random.Random("arrivals"), time.perf_counter()
        due, running = 0.0, set[asyncio.Task[None]]()
        while (due := due + rng.expovariate(rate)) < seconds:
            await asyncio.sleep(max(0.0, begun + due - time.perf_counter()))
            measured.late_ms.append(1000 * max(0.0, time.perf_counter() - begun - due))
            task = asyncio.create_task(self._due(begun + due, measured))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)
        measured.seconds = seconds
        return measured

    def close(self) -> None:
        """Abort all connections."""
        for connection in self._connections.values():
            connection.transport.abort()

    async def _due(self, due: float, measured: Measured) -> None:
        await self._turn(measured)
        measured.due_ms.append(1000 * (time.perf_counter() - due))

    async def _turn(self, measured: Measured) -> None:
        """Make a call of the conversation that has waited longest, or of a new one if all are in use."""
        conversation = self._idle.pop(0) if self._idle else next(self._source)
        self._idle.append(await self._call(conversation, measured))

    async def _call(self, conversation: HarnessConversation, measured: Measured) -> HarnessConversation:
        """Make one call. Return the conversation that continues: a new one if this is over or has failed."""
        body = conversation.body()
        request = (
            f"POST /v1/messages?beta=true HTTP/1.1\r\nhost: bench\r\nx-api-key: {conversation.token}\r\n"
            f"anthropic-version: 2023-06-01\r\ncontent-type: application/json\r\n{self._headers}"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode() + body
        try:
            connection = await self._connected(conversation.token)
            sent = time.perf_counter()
            answer = await asyncio.wait_for(connection.ask(request), TIMEOUT_S)
        except (OSError, TimeoutError) as error:
            return self._failed(conversation, measured, repr(error))
        taken = 1000 * (time.perf_counter() - sent)
        if not answer.startswith(b"HTTP/1.1 200") or b"message_stop" not in answer:
            return self._failed(conversation, measured, answer[:400].decode(errors="replace"))
        measured.latencies_ms.append(taken)
        measured.body_bytes.append(len(body))
        conversation.answered(answer)
        return self._replaced(conversation) if conversation.over else conversation

    async def _connected(self, token: str) -> LoadConnection:
        known = self._connections.get(token)
        # Servers close connections that were idle for long.
        if known is None or known.transport.is_closing():
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(LoadConnection, "127.0.0.1", self._port_of(token))
            self._connections[token] = connection
        return self._connections[token]

    def _failed(self, conversation: HarnessConversation, measured: Measured, why: str) -> HarnessConversation:
        measured.num_failed += 1
        measured.first_failure = measured.first_failure or why
        return self._replaced(conversation)

    def _replaced(self, conversation: HarnessConversation) -> HarnessConversation:
        if (connection := self._connections.pop(conversation.token, None)) is not None:
            connection.transport.abort()
        return next(self._source)
