"""A plain client of the engine protocol, for the conformance checks: reads what every server sends."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

TIMEOUT_S = 120.0


def require(condition: bool, message: str) -> None:
    """``assert`` that survives ``python -O``. Raises AssertionError."""
    if not condition:
        raise AssertionError(message)


@dataclass(frozen=True)
class Answer:
    ids: list[int]
    logprobs: list[float]
    logged_ids: list[int]
    finish: str | None
    cached: int
    document: dict[str, Any]

    @classmethod
    def of(cls, document: dict[str, Any]) -> "Answer":
        meta = document["meta_info"]
        finish, logged = meta["finish_reason"], meta["output_token_logprobs"]
        return cls(
            ids=document["output_ids"],
            logprobs=[entry[0] for entry in logged],
            logged_ids=[entry[1] for entry in logged],
            finish=finish["type"] if finish else None,
            cached=meta["cached_tokens"],
            document=document,
        )


class Background:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Answer]) -> None:
        self._answer: Answer | None = None
        self._error: Exception | None = None

        def work() -> None:
            try:
                self._answer = call()
            except Exception as error:  # Raised again where the result is asked for.
                self._error = error

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def finished_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> Answer:
        require(self.finished_within(TIMEOUT_S), f"no answer within {TIMEOUT_S:g} s")
        if self._error:
            raise self._error
        assert self._answer is not None
        return self._answer


class Engine:
    """A server under test."""

    long_tokens = 800
    """Enough that an answer is still going on while something else happens; fits a context of 2048."""

    def __init__(self, url: str, model_path: Path | None = None) -> None:
        self.http = httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False)
        self.model_path = model_path

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def prompt(self, length: int = 24) -> list[int]:
        """Token ids that every vocabulary has; prompts of different lengths share no prefix."""
        return [(length + 7 * i) % 60 + 3 for i in range(length)]

    def generate(self, input_ids: list[int], *, rid: str | None = None, **sampling: Any) -> Answer:
        response = self.http.post("/generate", json=_body(input_ids, rid, False, sampling))
        require(response.status_code == 200, f"/generate: {response.status_code} {response.text[:300]}")
        return Answer.of(response.json())

    def greedy(self, count: int, input_ids: list[int] | None = None) -> Answer:
        return self.generate(input_ids or self.prompt(), temperature=0.0, max_new_tokens=count)

    @contextmanager
    def stream(
        self, input_ids: list[int], *, rid: str | None = None, **sampling: Any
    ) -> Iterator[Iterator[Answer]]:
        """The events of a streamed answer; leaving early disconnects."""
        body = _body(input_ids, rid, True, sampling)
        with self.http.stream("POST", "/generate", json=body) as response:
            require(response.status_code == 200, f"/generate: {response.status_code}")
            yield _events(response)

    def command(self, path: str, **body: Any) -> None:
        response = self.http.post(path, json=body)
        require(response.status_code == 200, f"{path}: {response.status_code} {response.text[:300]}")

    def in_background(self, call: Callable[[], Answer]) -> Background:
        return Background(call)


def _body(input_ids: list[int], rid: str | None, stream: bool, sampling: dict[str, Any]) -> dict[str, Any]:
    params = {"temperature": 1.0, "sampling_seed": 0} | sampling
    if "seed" in params:
        params["sampling_seed"] = params.pop("seed")
    if "stop_token_ids" not in params:
        # Not the protocol's own field: SGLang else ends at the tokenizer's end-of-sequence token.
        params["ignore_eos"] = True
    named = {} if rid is None else {"rid": rid}
    return named | {
        "input_ids": input_ids,
        "sampling_params": params,
        "return_logprob": True,
        "stream": stream,
    }


def _events(response: httpx.Response) -> Iterator[Answer]:
    for line in response.iter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield Answer.of(json.loads(line.removeprefix("data: ")))
    raise AssertionError("the stream ended without [DONE]")
