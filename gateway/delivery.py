"""Writing an answer to its client: first event at once, pings while it is sampled, content once committed."""

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
"""Text is sent live in pieces of so long, as each look at it reads all of it."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """An ASGI response. ``on_delivered`` is called when the answer was written in full.

    Without ``early_start`` nothing of a stream is sent before the whole answer is there: for harnesses that
    try a request again which got no answer, but not a stream that breaks when a gateway dies.
    """

    dialect: Dialect
    call: LiveCall
    reply: Reply
    stream: bool
    early_start: bool
    live: bool
    """Whether the call tells what it has before it has all."""
    ping_s: float
    on_delivered: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_client_gone(receive))
        # The answer is whole for its client only when the last event is; a client that goes before
        # that may come back for it.
        self.call.connected = True
        try:
            done = await (self._stream(send, gone) if self.stream else self._whole(send, gone))
        finally:
            gone.cancel()
            self.call.connected = False
        if done:
            self.on_delivered()

    async def _stream(self, send: Send, gone: "asyncio.Task[None]") -> bool:
        if not self.early_start and not await self._answered(send, gone):
            return False
        stream = self.dialect.stream(self.reply)
        await _head(send, 200, [(b"content-type", stream.content_type), (b"cache-control", b"no-cache")])
        await _body(send, stream.start(), more=True)
        try:
            return await self._events(send, gone, stream)
        except EngineFailed as error:  # what was said is not what is recorded; a repeat gets that whole
            await _body(send, stream.error(status_of(error), error))
            return False

    async def _events(self, send: Send, gone: "asyncio.Task[None]", stream: Stream) -> bool:
        ended: set[asyncio.Task[Any]] = set()
        while not ended:
            ended = await self._heard(send, gone, stream)
        if gone in ended:
            return False
        assert self.call.task is not None
        if error := self.call.task.exception():
            await _body(send, stream.error(status_of(error), error))
            return False
        finished = self.call.task.result()
        await _body(send, stream.content(finished), more=True)
        if gone.done():
            return False
        await _body(send, stream.end(finished))
        return True

    async def _heard(
        self, send: Send, gone: "asyncio.Task[None]", stream: Stream
    ) -> "set[asyncio.Task[Any]]":
        """What ended; nothing after something was written, a ping if there was no more to say."""
        if not self.live:
            ended = await self._wait(gone, self.ping_s)
        else:
            grown = asyncio.create_task(self.call.grown.wait())
            try:
                ended = await self._wait(gone, self.ping_s, grown)
            finally:
                grown.cancel()
            if ended == {grown}:
                await self._say_more(send, stream)
                return set()
            ended -= {grown}
        if not ended:
            await _body(send, stream.ping, more=True)
        return ended

    async def _say_more(self, send: Send, stream: Stream) -> None:
        self.call.grown.clear()
        if more := stream.live(*self.call.said()):
            await _body(send, more, more=True)
        await asyncio.sleep(LIVE_EVERY_S)

    async def _whole(self, send: Send, gone: "asyncio.Task[None]") -> bool:
        if not await self._answered(send, gone):
            return False
        assert self.call.task is not None
        finished: Finished = self.call.task.result()
        body = compact_json(self.dialect.whole(self.reply, finished))
        await _head(send, 200, _json_headers(body))
        await _body(send, body[:-1], more=True)
        if gone.done():
            return False
        await _body(send, body[-1:])
        return True

    async def _answered(self, send: Send, gone: "asyncio.Task[None]") -> bool:
        """Wait for the answer; False if its client is gone, or if there is only an error, which is sent."""
        try:
            ended = await self._wait(gone, None)
        except asyncio.CancelledError:
            # The server stops, and has waited for so long as it may. What it says itself, when this goes
            # on as cancelled, is a 500 in no dialect's words.
            await send_error(send, self.dialect, EngineFailed("the gateway is stopping: ask again"))
            return False
        if gone in ended:
            return False
        assert self.call.task is not None
        if error := self.call.task.exception():
            await send_error(send, self.dialect, error)
        return self.call.task.exception() is None

    async def _wait(
        self, gone: "asyncio.Task[None]", timeout_s: float | None, *others: "asyncio.Task[Any]"
    ) -> "set[asyncio.Task[Any]]":
        """What ended first, the client, the call or one of the others; nothing after ``timeout_s``.

        The call itself is bounded: its engine and its commit are.
        """
        assert self.call.task is not None
        waited: set[asyncio.Task[Any]] = {gone, self.call.task, *others}
        ended, _ = await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return ended


async def send_error(send: Send, dialect: Dialect, error: BaseException) -> None:
    """A refused call, in the dialect's shape."""
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
