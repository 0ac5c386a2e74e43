"""A client for the conformance checks.

It parses answers with the gateway's own reader, so that a server passes only if the gateway can read it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.engines import read_response
from gyre.contracts.engine import GenerateMeta

TIMEOUT_S = 120.0


def require(condition: bool, message: str) -> None:
    """Raise AssertionError unless the condition holds, also under ``python -O``."""
    if not condition:
        raise AssertionError(message)


@dataclass(frozen=True)
class WireAnswer:
    """An answer, or the part of it that one event of a stream carries."""

    ids: list[int]
    meta: GenerateMeta

    @classmethod
    def of(cls, content: bytes) -> "WireAnswer":
        """Parse as the gateway does. Raises EngineFailed when the gateway could not read it."""
        answer = read_response(200, content)
        return cls(answer.output_ids, answer.meta_info)

    @property
    def logprobs(self) -> list[float]:
        return [entry[0] for entry in self.meta.output_token_logprobs]

    @property
    def logged_ids(self) -> list[int]:
        """Token ids that the log-probabilities name."""
        return [entry[1] for entry in self.meta.output_token_logprobs]

    @property
    def finish(self) -> str | None:
        return self.meta.finish_reason.type if self.meta.finish_reason else None


class BackgroundCall:
    """A call in its own thread."""

    def __init__(self, call: Callable[[], WireAnswer]) -> None:
        self._answer: WireAnswer | None = None
        self._error: Exception | None = None

        def work() -> None:
            try:
                self._answer = call()
            except Exception as error:  # Raised again by ``result``.
                self._error = error

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def finished_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> WireAnswer:
        require(self.finished_within(TIMEOUT_S), f"no answer within {TIMEOUT_S:g} s")
        if self._error:
            raise self._error
        assert self._answer is not None
        return self._answer


class EngineUnderTest:
    """A server of the engine protocol at a URL."""

    long_tokens = 800
    """Enough that an answer is still running while something else happens; fits a context of 2048."""

    def __init__(self, url: str, model_path: Path | None = None) -> None:
        self.http = httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False)
        self.model_path = model_path

    def __enter__(self) -> "EngineUnderTest":
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def prompt(self, length: int = 24) -> list[int]:
        """Return token ids that every vocabulary has. Prompts of different lengths share no prefix."""
        return [(length + 7 * i) % 60 + 3 for i in range(length)]

    def generate(self, input_ids: list[int], *, rid: str | None = None, **sampling: Any) -> WireAnswer:
        response = self.http.post("/generate", json=_body(input_ids, rid, False, sampling))
        require(response.status_code == 200, f"/generate: {response.status_code} {response.text[:300]}")
        return WireAnswer.of(response.content)

    def greedy(self, count: int, input_ids: list[int] | None = None) -> WireAnswer:
        return self.generate(input_ids or self.prompt(), temperature=0.0, max_new_tokens=count)

    @contextmanager
    def stream(
        self, input_ids: list[int], *, rid: str | None = None, **sampling: Any
    ) -> Iterator[Iterator[WireAnswer]]:
        """Yield the events of a streamed answer. Leaving early disconnects."""
        body = _body(input_ids, rid, True, sampling)
        with self.http.stream("POST", "/generate", json=body) as response:
            require(response.status_code == 200, f"/generate: {response.status_code}")
            yield _events(response)

    def command(self, path: str, **body: Any) -> None:
        response = self.http.post(path, json=body)
        require(response.status_code == 200, f"{path}: {response.status_code} {response.text[:300]}")

    def in_background(self, call: Callable[[], WireAnswer]) -> BackgroundCall:
        return BackgroundCall(call)


def _body(input_ids: list[int], rid: str | None, stream: bool, sampling: dict[str, Any]) -> dict[str, Any]:
    params = {"temperature": 1.0, "sampling_seed": 0} | sampling
    if "seed" in params:
        params["sampling_seed"] = params.pop("seed")
    if "stop_token_ids" not in params:
        # Not a field of the protocol. Without it SGLang also ends at the tokenizer's end-of-sequence token.
        params["ignore_eos"] = True
    named = {} if rid is None else {"rid": rid}
    return named | {
        "input_ids": input_ids,
        "sampling_params": params,
        "return_logprob": True,
        "stream": stream,
    }


def _events(response: httpx.Response) -> Iterator[WireAnswer]:
    for line in response.iter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield WireAnswer.of(line.removeprefix("data: ").encode())
    raise AssertionError("the stream ended without [DONE]")
