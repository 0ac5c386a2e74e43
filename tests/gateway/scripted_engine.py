"""An engine that answers from a script: the /generate protocol with made-up log-probabilities."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from transformers import PreTrainedTokenizerFast

from gyre.contracts.engine import GenerateRequest


@dataclass(frozen=True)
class Part:
    """The answer to one request: text or ids, and how it ends. A text that stops gets the stop token.

    With ``cut_after``, a stream breaks after that many tokens: by an event of the bytes ``cut_by``, or by
    closing the connection if there are none.
    """

    text: str = ""
    ids: list[int] | None = None
    finish: str = "stop"
    status: int = 200
    message: str = ""
    version: int = 0
    cut_after: int | None = None
    cut_by: bytes = b""


@dataclass
class ScriptedEngine:
    """An engine whose ``script`` maps a request and the text of its prompt to the answer.

    While unset, ``gate`` holds back answers, and ``tail`` the last event of each stream.
    """

    tokenizer: PreTrainedTokenizerFast
    script: Callable[[GenerateRequest, str], str | Part] = lambda request, prompt: "done"
    requests: list[GenerateRequest] = field(default_factory=list)
    left: list[GenerateRequest] = field(default_factory=list)
    """Requests whose client left while they were held back."""
    gate: threading.Event = field(default_factory=threading.Event)
    tail: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def __post_init__(self) -> None:
        self.gate.set()
        self.tail.set()

    async def generate(self, http: Request) -> Response:
        request = GenerateRequest.model_validate_json(await http.body())
        self.requests.append(request)
        while not self.gate.is_set():
            await asyncio.sleep(0.01)
            if await http.is_disconnected():
                self.left.append(request)
                return Response()
        answer = self.script(request, self.tokenizer.decode(request.input_ids))
        part = Part(answer) if isinstance(answer, str) else answer
        if part.status != 200:
            return JSONResponse({"error": {"message": part.message}}, status_code=part.status)
        if request.stream:
            return StreamingResponse(self._events(self._answer(request, part), part))
        return JSONResponse(self._answer(request, part))

    async def _events(self, answer: dict[str, Any], part: Part) -> AsyncIterator[bytes]:
        """Yield the answer token by token; each event repeats all tokens before it."""
        meta = answer["meta_info"]
        for count in range(1, meta["completion_tokens"] + 1):
            if part.cut_after == count - 1:
                if not part.cut_by:
                    raise ConnectionError("as the script says")
                yield b"data: " + part.cut_by + b"\n\n"
                return
            last = count == meta["completion_tokens"]
            while last and not self.tail.is_set():
                await asyncio.sleep(0.01)
            so_far = {
                **meta,
                "completion_tokens": count,
                "finish_reason": meta["finish_reason"] if last else None,
                "output_token_logprobs": meta["output_token_logprobs"][:count],
                "weight_versions": [[part.version, count]],
            }
            event = {"output_ids": answer["output_ids"][:count], "meta_info": so_far}
            yield f"data: {json.dumps(event)}\n\n".encode()
        yield b"data: [DONE]\n\n"

    def _answer(self, request: GenerateRequest, part: Part) -> dict[str, Any]:
        params = request.sampling_params
        ids = part.ids if part.ids is not None else self.tokenizer.encode(part.text, add_special_tokens=False)
        if part.finish == "stop" and part.ids is None:
            ids = [*ids, self.tokenizer.eos_token_id]
        finish = part.finish
        if len(ids) > params.max_new_tokens:
            ids, finish = ids[: params.max_new_tokens], "length"
        position = len(request.input_ids)
        scores = [-((params.sampling_seed + position + i) % 97) / 50 for i in range(len(ids))]
        meta = {
            "id": request.rid or "-",
            "finish_reason": {"type": finish, "matched": ids[-1] if finish == "stop" else None},
            "prompt_tokens": position,
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "output_token_logprobs": [[score, token, None] for score, token in zip(scores, ids, strict=True)],
            "weight_versions": [[part.version, len(ids)]],
        }
        return {"output_ids": ids, "meta_info": meta}


class Serving:
    """Runs a uvicorn server in a thread until the block ends."""

    def __init__(self, server: uvicorn.Server, run: Callable[[], Any]) -> None:
        self._server = server
        self._thread = threading.Thread(target=run, daemon=True)

    def __enter__(self) -> "Serving":
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the server ended before it had started")
            threading.Event().wait(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(20)


def engine_app(engine: ScriptedEngine) -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.add_route("/generate", engine.generate, methods=["POST"])
    return app
