"""The embedded engine passes the conformance suite, and the suite finds wrong servers."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from transformers import Qwen3ForCausalLM

from gyre.contracts.boot import EngineBoot
from tests.engine.conformance import CHECKS, EXTENSIONS, Check, EngineUnderTest, run
from tests.engine.conformance.checks import greedy_repeats, health, logprobs_are_probabilities
from tests.engine.conftest import CONTEXT, free_port, start_engine

COMPARE_TOKENS = (
    *("greedy_repeats", "greedy_continuation", "seed_repeats", "seeded_continuation", "pause_holds"),
    *("streaming_is_cumulative", "stop_token_is_kept", "prefix_is_reused", "released_memory_holds_requests"),
)
"""Checks that compare two answers of which one may be computed over a cached prefix. bfloat16 rounds a
prefill, a decode and a shorter prefill differently, so either of two nearly tied tokens may be chosen, and a
continued answer need not equal the uninterrupted one."""


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


class ConstantServer(BaseHTTPRequestHandler):
    """A server that gives the same answer to every request."""

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
        """Log nothing."""


class TooFewLogprobs(ConstantServer):
    """Answers two tokens with the log-probability of one, which the gateway does not accept."""

    answer = ConstantServer.answer.replace(b", [0.5, 6, null]", b"")


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[EngineUnderTest]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with EngineUnderTest(f"http://127.0.0.1:{server.server_address[1]}") as engine:
        yield engine
    server.shutdown()
    server.server_close()


def test_a_wrong_server_fails_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [check for check in CHECKS if check.__name__ not in ("health", "logprobs_match_transformers")]
    with serving(ConstantServer) as engine:
        assert run(engine, [health]) == 0
        assert run(engine, checks) == len(checks), capsys.readouterr().out
        assert run(engine, EXTENSIONS) == len(EXTENSIONS), capsys.readouterr().out


def test_a_server_that_the_gateway_cannot_read_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """A lenient reader of its own would let the suite pass servers that the gateway rejects."""
    with serving(TooFewLogprobs) as engine:
        assert run(engine, [logprobs_are_probabilities]) == 1
    assert "EngineFailed" in capsys.readouterr().out


def test_the_suite_runs_from_the_command_line(engine_url: str) -> None:
    skipped = [check.__name__ for check in CHECKS if check is not greedy_repeats]
    command = [sys.executable, "-m", "tests.engine.conformance", engine_url, "--skip", *skipped]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "ok    greedy_repeats\n"), done.stderr
