"""Routes of four dialects, with the attempt token as API key or as ``/t/<token>`` before the path."""

import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from gateway.delivery import Delivery, send_error
from gateway.dialects import AnthropicMessages, Dialect, GoogleGenerate, OpenAIChat, OpenAIResponses, Reply
from gateway.dialects.reading import parse_body
from gateway.errors import ANSWERED, BodyTooLarge, UnknownRoute
from gateway.role_evidence import call_role
from gateway.service import Service
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import AttemptId
from gyre.trajectory.canonical import CanonicalRequest

log = logging.getLogger(__name__)
ANTHROPIC, CHAT, RESPONSES = AnthropicMessages(), OpenAIChat(), OpenAIResponses()
GOOGLE_VERSIONS = ("/v1beta", "/v1")
SERVED = ("/v1/messages", "/v1/chat/completions", "/v1/responses", "/v1beta/models/MODEL:generateContent")
"""The routes that help someone with a wrong base URL; each also works after ``/t/TOKEN``."""
Handler = Callable[[Request], Awaitable[Any]]
DialectOf = Callable[[Request], Dialect]


class App(Router):
    """The routes of one run. A bare router: `DialectEndpoint` does what an application's layers would."""

    def __init__(self, service: Service, model: Path, ping_s: float) -> None:
        """``model`` only gives the name that is listed."""
        super().__init__()
        self.service = service

        def routes(path: str, endpoint: Any, methods: list[str]) -> None:
            self.routes += [Route(prefix + path, endpoint, methods=methods) for prefix in ("", "/t/{token}")]

        def answering(path: str, dialect_of: DialectOf) -> None:
            handler = partial(_answer, service, ping_s, dialect_of)
            routes(path, DialectEndpoint(dialect_of, handler), ["POST"])

        def counting(path: str, dialect_of: DialectOf, document: Callable[[int], dict[str, Any]]) -> None:
            handler = partial(_count, service, dialect_of, document)
            routes(path, DialectEndpoint(dialect_of, handler), ["POST"])

        answering("/v1/messages", lambda _: ANTHROPIC)
        answering("/v1/chat/completions", lambda _: CHAT)
        answering("/v1/responses", lambda _: RESPONSES)
        counting("/v1/messages/count_tokens", lambda _: ANTHROPIC, lambda num: {"input_tokens": num})
        counting(
            "/v1/responses/input_tokens",
            lambda _: RESPONSES,
            lambda num: {"object": "response.input_tokens", "input_tokens": num},
        )
        for version in GOOGLE_VERSIONS:
            method = version + "/models/{model:path}:"
            answering(f"{method}generateContent", _google)
            answering(f"{method}streamGenerateContent", partial(_google, streams=True))
            counting(f"{method}countTokens", _google, lambda num: {"totalTokens": num})
            models = DialectEndpoint(_guess_dialect, partial(_models, service, model.name))
            routes(f"{version}/models", models, ["GET"])
            routes(version + "/models/{model:path}", models, ["GET"])
        routes("/api/hello", _hello, ["GET", "HEAD"])
        health = DialectEndpoint(_guess_dialect, partial(_health, service))
        self.routes.append(Route("/health", health, methods=["GET"]))

    async def not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell someone who configured a wrong base URL which routes exist."""
        # The token may stand in the path, and answers end up in logs.
        path = re.sub("^/t/[^/]*", "/t/TOKEN", scope["path"])
        error = UnknownRoute(f"no route for {path!r:.200}; served are {', '.join(SERVED)}")
        await send_error(send, _guess_dialect(Request(scope)), error)


@dataclass(frozen=True, slots=True)
class DialectEndpoint:
    """An ASGI application that answers failures in the dialect's own shape.

    A bug is logged and answered as 500.
    """

    dialect_of: DialectOf
    handler: Handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self.handler(request)
        except ANSWERED as failure:
            error: Exception = failure
        except ClientDisconnect:
            error = BadInput("the client went before its request was read")
        except Exception as bug:
            log.exception("call failed")
            error = bug
        else:
            await response(scope, receive, send)
            return
        await send_error(send, self.dialect_of(request), error)


def presented_token(request: Request) -> str:
    """Return the attempt token of a request, or an empty text."""
    if token := request.path_params.get("token"):
        return token
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    return request.headers.get("x-api-key", "") or _google_key(request)


def _google_key(request: Request) -> str:
    return request.headers.get("x-goog-api-key", "") or request.query_params.get("key", "")


def _google(request: Request, *, streams: bool = False) -> GoogleGenerate:
    sse = request.query_params.get("alt") == "sse"
    return GoogleGenerate(request.path_params["model"], streams, sse)


def _guess_dialect(request: Request) -> Dialect:
    """Guess the dialect of a request that shows it only by its headers or its path."""
    if _google_key(request) or "/v1beta/" in request.url.path:
        return GoogleGenerate()
    return ANTHROPIC if "anthropic-version" in request.headers else CHAT


async def _answer(service: Service, ping_s: float, dialect_of: DialectOf, request: Request) -> Delivery:
    dialect = dialect_of(request)
    attempt, parsed = await _read_request(service, dialect, request)
    role = call_role(service.settings.roles, request.headers, parsed)
    call = await service.open_call(attempt, parsed, dialect, role)
    return Delivery(
        dialect=dialect,
        call=call,
        reply=Reply(call.id, parsed.model, call.num_input_tokens, int(time.time()), parsed.echo),
        stream=parsed.stream,
        early_start=service.settings.early_start,
        live=service.settings.live,
        ping_s=ping_s,
        on_delivered=lambda: service.delivered(attempt, call),
    )


async def _count(
    service: Service, dialect_of: DialectOf, document: Callable[[int], dict[str, Any]], request: Request
) -> Response:
    attempt, parsed = await _read_request(service, dialect_of(request), request)
    return JSONResponse(document(await service.count_tokens(attempt, parsed)))


async def _read_request(
    service: Service, dialect: Dialect, request: Request
) -> tuple[AttemptId, CanonicalRequest]:
    """Authenticate and parse a request. Raises Unauthorized, BodyTooLarge or BadInput."""
    attempt = service.authenticate(presented_token(request))
    pieces, size, limit = list[bytes](), 0, service.settings.max_body_bytes
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise BodyTooLarge(f"the request body has more than {limit} bytes")
        pieces.append(piece)
    return attempt, parse_request(dialect, b"".join(pieces))


def parse_request(dialect: Dialect, body: bytes) -> CanonicalRequest:
    """Parse the body of a request. Raises BadInput."""
    return dialect.parse(parse_body(body))


async def _models(service: Service, name: str, request: Request) -> Response:
    """List the one model there is, or describe it under any name that is requested."""
    service.authenticate(presented_token(request))
    requested = request.path_params.get("model")
    if isinstance(_guess_dialect(request), GoogleGenerate):
        settings = service.settings
        entry = _google_model(requested or name, settings.context_tokens, settings.max_tokens)
        return JSONResponse(entry if requested else {"models": [entry]})
    entry = _model(requested or name)
    listed = {"object": "list", "data": [entry], "has_more": False, "first_id": name, "last_id": name}
    return JSONResponse(entry if requested else listed)


def _model(name: str) -> dict[str, Any]:
    """Build one document that the clients of both Anthropic and OpenAI read."""
    entry = {"id": name, "display_name": name, "type": "model", "object": "model", "owned_by": "gyre"}
    return entry | {"created": 0, "created_at": "1970-01-01T00:00:00Z"}


def _google_model(name: str, context_tokens: int, max_tokens: int) -> dict[str, Any]:
    return {
        "name": f"models/{name}",
        "displayName": name,
        "version": "1",
        "inputTokenLimit": context_tokens,
        "outputTokenLimit": max_tokens,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


async def _hello(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _health(service: Service, _: Request) -> Response:
    counts = dict(service.counts)
    return JSONResponse({"status": "ok", "alarms": service.watch.alarms, "counts": counts})
