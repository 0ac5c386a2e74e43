"""Routes: two dialects, with the attempt token as API key or as ``/t/<token>`` before the path."""

import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.delivery import Delivery, send_error
from gateway.dialects import AnthropicMessages, Dialect, OpenAIChat, OpenAIResponses, Reply
from gateway.errors import ANSWERED, BodyTooLarge
from gateway.roles import call_role
from gateway.service import Service
from gyre.contracts.ids import AttemptId
from gyre.trajectory.canonical import CanonicalRequest
from gyre.trajectory.dialects import parse_body

log = logging.getLogger(__name__)
ANTHROPIC, OPENAI, RESPONSES = AnthropicMessages(), OpenAIChat(), OpenAIResponses()
Handler = Callable[[Request], Awaitable[Any]]


def create_app(service: Service, model: Path, ping_s: float) -> FastAPI:
    """The application of one run; ``model`` only gives the name that is listed."""
    app = FastAPI(openapi_url=None)
    app.state.service = service

    def routes(path: str, endpoint: Handler, methods: list[str]) -> None:
        for prefix in ("", "/t/{token}"):
            app.add_route(prefix + path, endpoint, methods=methods)

    def answering(dialect: Dialect) -> Handler:
        return _guarded(dialect, lambda request: _answer(service, dialect, request, ping_s))

    async def models(request: Request) -> Response:
        service.authenticate(presented_token(request))
        return JSONResponse(_model_list(model.name))

    async def counted(dialect: Dialect, request: Request) -> int:
        attempt, asked = await _asked(service, dialect, request)
        return await service.count_tokens(attempt, asked)

    async def count_messages(request: Request) -> Response:
        return JSONResponse({"input_tokens": await counted(ANTHROPIC, request)})

    async def count_responses(request: Request) -> Response:
        num_tokens = await counted(RESPONSES, request)
        return JSONResponse({"object": "response.input_tokens", "input_tokens": num_tokens})

    async def hello(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok", "counts": dict(service.counts)})

    routes("/v1/messages", answering(ANTHROPIC), ["POST"])
    routes("/v1/chat/completions", answering(OPENAI), ["POST"])
    routes("/v1/responses", answering(RESPONSES), ["POST"])
    routes("/v1/messages/count_tokens", _guarded(ANTHROPIC, count_messages), ["POST"])
    routes("/v1/responses/input_tokens", _guarded(RESPONSES, count_responses), ["POST"])
    routes("/v1/models", _guarded(OPENAI, models), ["GET"])
    routes("/api/hello", hello, ["GET", "HEAD"])
    app.add_route("/health", health, methods=["GET"])
    return app


def presented_token(request: Request) -> str:
    """The attempt token of a request, or an empty text."""
    if token := request.path_params.get("token"):
        return token
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    return request.headers.get("x-api-key", "")


class Refusal:
    """An ASGI response that says why a call is not served."""

    def __init__(self, dialect: Dialect, error: BaseException) -> None:
        self._dialect, self._error = dialect, error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_error(send, self._dialect, self._error)


def _guarded(dialect: Dialect, handler: Handler) -> Handler:
    """Failures in the dialect's own shape; a bug is logged and answered as 500."""

    async def endpoint(request: Request) -> Any:
        try:
            return await handler(request)
        except ANSWERED as error:
            return Refusal(dialect, error)
        except Exception as error:
            log.exception("call failed")
            return Refusal(dialect, error)

    return endpoint


async def _answer(service: Service, dialect: Dialect, request: Request, ping_s: float) -> Delivery:
    attempt, asked = await _asked(service, dialect, request)
    role = call_role(service.policy.roles, request.headers, asked)
    call = await service.open_call(attempt, asked, dialect, role)
    return Delivery(
        dialect=dialect,
        call=call,
        reply=Reply(call.id, asked.model, call.num_input_tokens, int(time.time()), asked.echo),
        stream=asked.stream,
        ping_s=ping_s,
        on_delivered=lambda: service.delivered(attempt, call),
    )


async def _asked(service: Service, dialect: Dialect, request: Request) -> tuple[AttemptId, CanonicalRequest]:
    """Who asks and what. Raises Unauthorized, BodyTooLarge or BadInput."""
    attempt = service.authenticate(presented_token(request))
    body = await _read_body(request, service.policy.max_body_bytes)
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


def _model_list(name: str) -> dict[str, Any]:
    """One document that both vendors' clients read."""
    entry = {"id": name, "display_name": name, "type": "model", "object": "model", "owned_by": "gyre"}
    entry |= {"created": 0, "created_at": "1970-01-01T00:00:00Z"}
    return {"object": "list", "data": [entry], "has_more": False, "first_id": name, "last_id": name}
