"""Delivers an answer to its client: first event at once, pings while sampling, content once committed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from gateway.dialects.base import Dialect, Finished, Reply, Stream
from gateway.errors import status_of
from gateway.live_attempt import LiveCall
from gyre.contracts.errors import EngineFailed
from gyre.contracts.json_text import compact_json

LIVE_EVERY_S = 0.05
"""Minimum interval between live chunks: each re-decodes the whole answer."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """An ASGI response. ``on_delivered`` is called when the answer was written in full.

    Without ``early_start`` no part of a stream is sent before the whole answer is there. That is for
    harnesses that retry a request without an answer, but not a stream that breaks when a gateway dies.
    """

    dialect: Dialect
    call: LiveCall
    reply: Reply
    stream: bool
    early_start: bool
    live: bool
    """Whether text is sent while it is sampled."""
    ping_s: float
    on_delivered: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_client_gone(receive))
        # The client has the whole answer only with its last event. If it leaves before that, it may come
        # back for the answer.
        self.call.connected = True
        try:
            delivered = await (self._send_stream(send, gone) if self.stream else self._send_whole(send, gone))
        finally:
            gone.cancel()
            self.call.connected = False
        if delivered:
            self.on_delivered()

    @property
    def _task(self) -> "asyncio.Task[Finished]":
        assert self.call.task is not None, "a call is delivered once it was started"
        return self.call.task

    async def _send_stream(self, send: Send, gone: "asyncio.Task[None]") -> bool:
        """Send the events of the answer. Return False if the client left or got an error instead."""
        if not self.early_start and not await self._answered(send, gone):
            return False
        stream = self.dialect.stream(self.reply)
        await _head(send, 200, [(b"content-type", stream.content_type), (b"cache-control", b"no-cache")])
        await _body(send, stream.start(), more=True)
        try:
            await self._send_progress(send, gone, stream)
            if gone.done():
                return False
            if error := self._task.exception():
                await _body(send, stream.error(status_of(error), error))
                return False
            finished = self._task.result()
            await _body(send, stream.content(finished), more=True)
            if gone.done():
                return False
            await _body(send, stream.end(finished))
        except EngineFailed as error:
            # The live text contradicts the recorded answer. A retry gets the recorded one in full.
            await _body(send, stream.error(status_of(error), error))
            return False
        return True

    async def _send_progress(self, send: Send, gone: "asyncio.Task[None]", stream: Stream) -> None:
        """Send live text, and pings when there is none, until the call has ended or its client left."""
        while True:
            progressed = asyncio.create_task(self.call.progressed.wait()) if self.live else None
            try:
                ended = await self._wait(gone, self.ping_s, *filter(None, [progressed]))
            finally:
                if progressed:
                    progressed.cancel()
            if ended - {progressed}:
                return
            if ended:
                self.call.progressed.clear()
                if more := stream.live(*self.call.so_far()):
                    await _body(send, more, more=True)
                await asyncio.sleep(LIVE_EVERY_S)
            else:
                await _body(send, stream.ping, more=True)

    async def _send_whole(self, send: Send, gone: "asyncio.Task[None]") -> bool:
        """Send the answer as one document. Return False if the client left or got an error instead."""
        if not await self._answered(send, gone):
            return False
        body = compact_json(self.dialect.whole(self.reply, self._task.result()))
        await _head(send, 200, _json_headers(body))
        # The last byte goes separately: a client that left before it does not have the answer.
        await _body(send, body[:-1], more=True)
        if gone.done():
            return False
        await _body(send, body[-1:])
        return True

    async def _answered(self, send: Send, gone: "asyncio.Task[None]") -> bool:
        """Wait for the answer. Return False if the client left, or if the call failed and that was sent."""
        try:
            ended = await self._wait(gone, None)
        except asyncio.CancelledError:
            # The server stops, and its grace period is over. If this ended as cancelled, uvicorn would send
            # a 500 that is in no dialect's shape.
            await send_error(send, self.dialect, EngineFailed("the gateway is stopping: ask again"))
            return False
        if gone in ended:
            return False
        if error := self._task.exception():
            await send_error(send, self.dialect, error)
            return False
        return True

    async def _wait(
        self, gone: "asyncio.Task[None]", timeout_s: float | None, *others: "asyncio.Task[Any]"
    ) -> "set[asyncio.Task[Any]]":
        """Return what ended first: client, call or one of the others. Empty after ``timeout_s``.

        Without a timeout this still ends: the engine's time and the commit's are bounded.
        """
        waited: set[asyncio.Task[Any]] = {gone, self._task, *others}
        ended, _ = await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return ended


async def send_error(send: Send, dialect: Dialect, error: BaseException) -> None:
    """Refuse a call in the dialect's shape."""
    status, document = dialect.error(status_of(error), error)
    body = compact_json(document)
    retry = [(b"retry-after", b"1")] if status in (429, 503, 529) else []
    await _head(send, status, _json_headers(body) + retry)
    await _body(send, body)


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _head(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _body(send: Send, body: bytes, *, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


def _json_headers(body: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
