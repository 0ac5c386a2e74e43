"""Routes: four dialects, with the attempt token as API key or as ``/t/<token>`` before the path."""

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
"""As far as somebody who set a wrong base URL must know; each may stand behind ``/t/TOKEN``."""
Handler = Callable[[Request], Awaitable[Any]]
DialectOf = Callable[[Request], Dialect]


class App(Router):
    """The routes of one run, without the layers of an application that repeat `DialectEndpoint`."""

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
        counting("/v1/responses/input_tokens", lambda _: RESPONSES, _counted_response)
        for version in GOOGLE_VERSIONS:
            method = version + "/models/{model:path}:"
            answering(f"{method}generateContent", _google)
            answering(f"{method}streamGenerateContent", partial(_google, streams=True))
            counting(f"{method}countTokens", _google, lambda num: {"totalTokens": num})
            models = DialectEndpoint(_asker, partial(_models, service, model.name))
            routes(f"{version}/models", models, ["GET"])
            routes(version + "/models/{model:path}", models, ["GET"])
        routes("/api/hello", _hello, ["GET", "HEAD"])
        self.routes.append(
            Route("/health", DialectEndpoint(_asker, partial(_health, service)), methods=["GET"])
        )

    async def not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A sentence for whoever gave a harness the wrong base URL; the token may stand in the path."""
        path = re.sub("^/t/[^/]*", "/t/TOKEN", scope["path"])
        error = UnknownRoute(f"no route for {path!r:.200}; served are {', '.join(SERVED)}")
        await send_error(send, _asker(Request(scope)), error)


def presented_token(request: Request) -> str:
    """The attempt token of a request, or an empty text."""
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


def _asker(request: Request) -> Dialect:
    """Whose words a question is asked in that says so only by its headers or its path."""
    if _google_key(request) or "/v1beta/" in request.url.path:
        return GoogleGenerate()
    return ANTHROPIC if "anthropic-version" in request.headers else CHAT


class Refusal:
    """An ASGI response that says why a call is not served."""

    def __init__(self, dialect: Dialect, error: BaseException) -> None:
        self._dialect, self._error = dialect, error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_error(send, self._dialect, self._error)


@dataclass(frozen=True, slots=True)
class DialectEndpoint:
    """An ASGI application. Failures in the dialect's own shape; a bug is logged and answered as 500."""

    dialect_of: DialectOf
    handler: Handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self.handler(request)
        except ANSWERED as error:
            response = Refusal(self.dialect_of(request), error)
        except ClientDisconnect:
            gone = BadInput("the client went before its request was read")
            response = Refusal(self.dialect_of(request), gone)
        except Exception as error:
            log.exception("call failed")
            response = Refusal(self.dialect_of(request), error)
        await response(scope, receive, send)


async def _answer(service: Service, ping_s: float, dialect_of: DialectOf, request: Request) -> Delivery:
    dialect = dialect_of(request)
    attempt, asked = await _asked(service, dialect, request)
    role = call_role(service.settings.roles, request.headers, asked)
    call = await service.open_call(attempt, asked, dialect, role)
    return Delivery(
        dialect=dialect,
        call=call,
        reply=Reply(call.id, asked.model, call.num_input_tokens, int(time.time()), asked.echo),
        stream=asked.stream,
        early_start=service.settings.early_start,
        live=service.settings.live,
        ping_s=ping_s,
        on_delivered=lambda: service.delivered(attempt, call),
    )


async def _count(
    service: Service, dialect_of: DialectOf, document: Callable[[int], dict[str, Any]], request: Request
) -> Response:
    attempt, asked = await _asked(service, dialect_of(request), request)
    return JSONResponse(document(await service.count_tokens(attempt, asked)))


def _counted_response(num_tokens: int) -> dict[str, Any]:
    return {"object": "response.input_tokens", "input_tokens": num_tokens}


async def _asked(service: Service, dialect: Dialect, request: Request) -> tuple[AttemptId, CanonicalRequest]:
    """Who asks and what. Raises Unauthorized, BodyTooLarge or BadInput."""
    attempt = service.authenticate(presented_token(request))
    body = await _read_body(request, service.settings.max_body_bytes)
    with service.clock.stage("parse"):
        return attempt, dialect.parse(parse_body(body))


async def _read_body(request: Request, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise BodyTooLarge(f"the request body has more than {limit} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def _models(service: Service, name: str, request: Request) -> Response:
    """The one model that there is; asked for by name, any name is its."""
    service.authenticate(presented_token(request))
    asked = request.path_params.get("model")
    if isinstance(_asker(request), GoogleGenerate):
        entry = _google_model(asked or name, service.settings.context_tokens, service.settings.max_tokens)
        return JSONResponse(entry if asked else {"models": [entry]})
    entry = _model(asked or name)
    return JSONResponse(entry if asked else _model_list(entry))


def _model(name: str) -> dict[str, Any]:
    """One document that the clients of Anthropic and of OpenAI read."""
    entry = {"id": name, "display_name": name, "type": "model", "object": "model", "owned_by": "gyre"}
    return entry | {"created": 0, "created_at": "1970-01-01T00:00:00Z"}


def _model_list(entry: dict[str, Any]) -> dict[str, Any]:
    name = entry["id"]
    return {"object": "list", "data": [entry], "has_more": False, "first_id": name, "last_id": name}


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
    counts, spent_s = dict(service.counts), service.clock.spent_s()
    return JSONResponse({"status": "ok", "alarms": service.watch.alarms, "counts": counts, "cpu_s": spent_s})
