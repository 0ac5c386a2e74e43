"""The embedded engine passes the suite that every engine must pass; the suite itself can fail."""

import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from transformers import Qwen3ForCausalLM

from gyre.contracts.boot import EngineBoot
from tests.engine.conformance import CHECKS, EXTENSIONS, Check, EngineUnderTest, run
from tests.engine.conformance.checks import health
from tests.engine.conftest import CONTEXT, free_port, start_engine

COMPARE_TOKENS = (
    *("greedy_repeats", "greedy_continuation", "seed_repeats", "seeded_continuation", "pause_holds"),
    *("streaming_is_cumulative", "stop_token_is_kept", "prefix_is_reused", "released_memory_holds_requests"),
)
"""Checks that hold one answer against another that may have been computed over a cached prefix. bfloat16
rounds a prefill, a decode and a shorter prefill differently, so where two tokens are near a tie either may
be chosen: in bfloat16 a continued answer need not be the one that was not interrupted."""


@pytest.fixture(scope="module")
def engine(engine_url: str, reference: tuple[Path, Qwen3ForCausalLM]) -> Iterator[EngineUnderTest]:
    with EngineUnderTest(engine_url, reference[0]) as found:
        yield found


@pytest.mark.parametrize("check", CHECKS + EXTENSIONS, ids=lambda check: check.__name__)
def test_embedded_engine(engine: EngineUnderTest, check: Check) -> None:
    check(engine)


def test_embedded_engine_in_bfloat16(reference: tuple[Path, Qwen3ForCausalLM], tmp_path: Path) -> None:
    boot = EngineBoot(
        model_path=str(reference[0]), port=free_port(), epoch=3, context_tokens=CONTEXT, dtype="bfloat16"
    )
    process = start_engine(tmp_path, boot)
    checks = [check for check in CHECKS + EXTENSIONS if check.__name__ not in COMPARE_TOKENS]
    with EngineUnderTest(f"http://127.0.0.1:{boot.port}") as engine:
        failed = run(engine, checks)
    process.terminate()
    assert process.wait(30) == -signal.SIGTERM
    assert failed == 0


class Constant(BaseHTTPRequestHandler):
    """A server that gives one answer to everything, whatever was asked."""

    answer = (
        b'{"output_ids": [5, 6], "meta_info": {"id": "x", "finish_reason": {"type": "length"}, '
        b'"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 0, '
        b'"output_token_logprobs": [[0.5, 5, null], [0.5, 6, null]], "weight_versions": [[0, 2]]}}'
    )

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length", 0))
        self.rfile.read(length)
        self.send_response(200)
        self.send_header("content-length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


def test_a_wrong_server_fails_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Constant)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    checks = [check for check in CHECKS if check.__name__ not in ("health", "logprobs_match_transformers")]
    with EngineUnderTest(f"http://127.0.0.1:{server.server_address[1]}") as engine:
        assert run(engine, [health]) == 0
        assert run(engine, checks) == len(checks), capsys.readouterr().out
        assert run(engine, EXTENSIONS) == len(EXTENSIONS), capsys.readouterr().out
    server.shutdown()
    server.server_close()
