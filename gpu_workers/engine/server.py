"""The engine protocol over HTTP. Generation itself happens in the scheduler's thread."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException

from gpu_workers.engine.build import build_scheduler
from gpu_workers.engine.load_weights import WeightPuller
from gpu_workers.engine.metrics import create_registry
from gpu_workers.engine.publication import Publication
from gpu_workers.engine.requests import Generation
from gpu_workers.engine.scheduler import Scheduler
from gpu_workers.engine.validation import Empty, check_request, parse
from gyre.contracts.boot import EngineBoot
from gyre.contracts.engine import EngineInfo, GenerateRequest, PullWeights
from gyre.contracts.errors import BadInput, EngineFailed, Fenced, GyreError, TransferFailed
from gyre.contracts.json_text import compact_json

COMMAND_S = 60.0
"""Limit on a command, which waits for at most one scheduler step and the copy of the weights."""
_POLL_S = 5.0
"""How often a waiting request checks that the scheduler is still alive."""
_STATUS = {BadInput: 400, Fenced: 409, TransferFailed: 502, EngineFailed: 503}


class AbortRequest(Empty):
    rid: str = ""
    abort_all: bool = False


class PauseRequest(Empty):
    mode: Literal["in_place", "retract", "abort"] = "in_place"
    """Running requests keep their KV, or recompute it later, or end with what they have."""


class EngineServer:
    """One engine behind HTTP. Its methods are the handlers that ``create_app`` routes to."""

    def __init__(self, boot: EngineBoot) -> None:
        self.boot = boot
        self.scheduler: Scheduler = build_scheduler(boot, self._notify)
        self.publication = Publication(self.scheduler, WeightPuller(), epoch=boot.epoch)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_flight: dict[Generation, asyncio.Event] = {}
        self._metrics = create_registry(self.scheduler)
        self._vocab = self.scheduler.model.shape.vocab_size

    def start(self) -> None:
        """Start the scheduler. Call it in the event loop that serves the requests."""
        self._loop = asyncio.get_running_loop()
        self.scheduler.start()

    def _notify(self, changed: list[Generation]) -> None:
        """Wake the event loop from the scheduler's thread, once per step however many requests changed."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._wake, changed)

    def _wake(self, changed: list[Generation]) -> None:
        for generation in changed:
            if generation in self._in_flight:
                self._in_flight[generation].set()

    async def generate(self, request: Request) -> Response:
        parsed = await parse(request, GenerateRequest)
        check_request(parsed, vocab=self._vocab, context_tokens=self.boot.context_tokens)
        generation = Generation.of(parsed, parsed.rid or uuid.uuid4().hex, self.boot.context_tokens)
        updates = self._updates(generation, request)
        if parsed.stream:
            return StreamingResponse(_events(updates), media_type="text/event-stream")
        bodies = [body async for body in updates]  # Only the finished answer, or nothing if the client left.
        return Response(bodies[-1] if bodies else b"", media_type="application/json")

    async def _updates(self, generation: Generation, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the answer so far as JSON each time it has grown, and last the finished one.

        The request is aborted when iteration stops early, be it by a disconnect or otherwise.
        """
        changed = asyncio.Event()
        self._in_flight[generation] = changed
        gone = asyncio.create_task(_disconnected(request))
        try:
            self.scheduler.submit(generation)
            while not generation.ended:
                if not await self._changed_or_gone(changed, gone):
                    return
                if not generation.ended and generation.sampled:
                    yield _json(generation)
            if generation.failure:
                raise EngineFailed(generation.failure)
            yield _json(generation)
        finally:
            gone.cancel()
            del self._in_flight[generation]
            if not generation.ended:
                self.scheduler.abort(generation)

    async def _changed_or_gone(self, changed: asyncio.Event, gone: "asyncio.Task[None]") -> bool:
        """Wait for an update. Returns False when the client left; raises EngineFailed if the engine ended."""
        waiter = asyncio.ensure_future(changed.wait())
        try:
            while not changed.is_set():
                await asyncio.wait({waiter, gone}, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return False
                if not self.scheduler.alive and not changed.is_set():
                    raise EngineFailed("the engine has stopped")
        finally:
            waiter.cancel()
        changed.clear()
        return True

    async def abort(self, request: Request) -> Response:
        parsed = await parse(request, AbortRequest)
        for generation in self._in_flight:
            if parsed.abort_all or generation.rid == parsed.rid:
                self.scheduler.abort(generation)
        return JSONResponse({})

    async def pause(self, request: Request) -> Response:
        parsed = await parse(request, PauseRequest)
        await _wait_for(self.scheduler.pause(parsed.mode))
        return JSONResponse({})

    async def resume(self, request: Request) -> Response:
        await parse(request, Empty)
        await _wait_for(self.scheduler.resume())
        return JSONResponse({})

    async def flush(self, request: Request) -> Response:
        await parse(request, Empty)
        await _wait_for(self.scheduler.flush_cache())
        return JSONResponse({})

    async def release(self, request: Request) -> Response:
        await parse(request, Empty)
        await _wait_for(self.scheduler.release_memory())
        return JSONResponse({})

    async def restore(self, request: Request) -> Response:
        await parse(request, Empty)
        await _wait_for(self.scheduler.resume_memory())
        return JSONResponse({})

    async def pull(self, request: Request) -> Response:
        parsed = await parse(request, PullWeights)
        return JSONResponse(await self.publication.apply(parsed))

    async def health(self, _: Request) -> Response:
        if not self.scheduler.alive:
            raise EngineFailed("the engine has stopped")
        return JSONResponse({"status": "ok"})

    async def info(self, _: Request) -> Response:
        scheduler = self.scheduler
        found = EngineInfo(
            model_path=self.boot.model_path,
            weight_version=scheduler.version,
            vocab_size=self._vocab,
            context_tokens=self.boot.context_tokens,
            max_running_requests=self.boot.max_batch,
            num_running=scheduler.num_running,
            epoch=self.boot.epoch,
            extra={
                "num_waiting": scheduler.num_waiting,
                "paused": scheduler.paused,
                "released": scheduler.released,
                "kv_bytes": scheduler.kv_bytes,
            },
        )
        return JSONResponse(found.model_dump())

    async def metrics(self, _: Request) -> Response:
        return Response(generate_latest(self._metrics), media_type="text/plain")


def create_app(server: EngineServer) -> FastAPI:
    """Build the routes of the engine protocol. Every error is ``{"error": {"message": ...}}``."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        server.start()
        yield
        await asyncio.to_thread(server.scheduler.stop)

    app = FastAPI(openapi_url=None, lifespan=lifespan)
    routes: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
        ("POST", "/generate", server.generate),
        ("POST", "/abort_request", server.abort),
        ("POST", "/pause_generation", server.pause),
        ("POST", "/continue_generation", server.resume),
        ("POST", "/flush_cache", server.flush),
        ("POST", "/release_memory_occupation", server.release),
        ("POST", "/resume_memory_occupation", server.restore),
        ("POST", "/pull_weights", server.pull),
        ("GET", "/health", server.health),
        ("GET", "/get_server_info", server.info),
        ("GET", "/metrics", server.metrics),
    ]
    for method, path, handler in routes:
        app.add_api_route(path, handler, methods=[method], response_model=None)
    app.add_exception_handler(GyreError, _gyre_error)
    app.add_exception_handler(HTTPException, _http_error)
    return app


async def _events(updates: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Yield server-sent events. The status is already sent, so a failure becomes an event too."""
    async with aclosing(updates):
        try:
            async for body in updates:
                yield b"data: " + body + b"\n\n"
        except EngineFailed as error:
            yield b"data: " + compact_json({"error": {"message": str(error)}}) + b"\n\n"
        yield b"data: [DONE]\n\n"


def _json(generation: Generation) -> bytes:
    return generation.snapshot().model_dump_json().encode()


async def _disconnected(request: Request) -> None:
    """Return when the client has left. The body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _wait_for(future: Future[Any]) -> None:
    """Wait for a scheduler command. Raises EngineFailed when it takes too long."""
    try:
        await asyncio.wait_for(asyncio.wrap_future(future), COMMAND_S)
    except TimeoutError:
        raise EngineFailed(f"the scheduler did not answer within {COMMAND_S:g} s") from None


async def _gyre_error(_: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 503)
    return JSONResponse({"error": {"message": str(error)}}, status_code=status)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": {"message": str(error.detail)}}, status_code=error.status_code)
