"""The tiny harness as a black box: a process against a chat completions endpoint."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.sandbox.conftest import Gateway, calls_shell, says

AGENT = Path(__file__).resolve().parents[2] / "examples" / "tiny_harness" / "agent.py"


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[tuple[Gateway, str]]:
    """The scripted gateway over TCP."""
    scripted = Gateway(tmp_path / "unused")
    server = ThreadingHTTPServer(("127.0.0.1", 0), scripted._handler())
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield scripted, f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()


@pytest.fixture
def agent(tmp_path: Path, endpoint: tuple[Gateway, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "instruction.md").write_text("write a file")
        env = {"PATH": os.environ["PATH"], "OPENAI_BASE_URL": endpoint[1], "OPENAI_API_KEY": "key"}
        command = [sys.executable, "-I", "-S", str(AGENT), str(tmp_path / "instruction.md"), *options]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)

    return run


def test_it_runs_tool_calls_and_appends_their_output(endpoint, agent, tmp_path: Path) -> None:
    gateway = endpoint[0]
    gateway.script = [
        calls_shell("echo one > a; echo printed; exit 3", 1),
        calls_shell("cat a", 2),
        says("done"),
    ]
    assert agent().returncode == 0
    assert (tmp_path / "a").read_text() == "one\n"
    first, second, third = gateway.requests
    assert first["messages"] == [{"role": "user", "content": "write a file"}]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["shell"]
    # What was sent before is sent again unchanged: a prefix a gateway can match.
    assert second["messages"][:2] == [*first["messages"], gateway.script[0]]
    assert second["messages"][2] == {"role": "tool", "tool_call_id": "call_1", "content": "printed\nexit 3"}
    assert third["messages"][-1]["content"] == "one\n"


def test_it_stops_after_its_turns(endpoint, agent) -> None:
    endpoint[0].script = [calls_shell("true", number) for number in range(9)]
    assert agent("--max-turns", "3").returncode == 0
    assert len(endpoint[0].requests) == 3


def test_output_is_cut(endpoint, agent) -> None:
    endpoint[0].script = [calls_shell("head -c 5000 /dev/zero | tr '\\0' x"), says("done")]
    agent("--output-chars", "50")
    assert endpoint[0].requests[1]["messages"][-1]["content"] == "x" * 50


def test_busy_and_failing_servers_are_tried_again(endpoint, agent) -> None:
    endpoint[0].refusals = [429, 503, 500]
    endpoint[0].script = [says("done")]
    assert agent().returncode == 0
    assert len(endpoint[0].requests) == 1


def test_a_refusal_ends_it(endpoint, agent) -> None:
    endpoint[0].refusals = [410]
    done = agent()
    assert done.returncode == 1
    assert "410" in done.stderr


@pytest.mark.parametrize("arguments", ["not json", '{"cmd": "x"}', '{"command": 3}', "[]"])
def test_malformed_tool_calls_get_an_answer(endpoint, agent, arguments: str) -> None:
    call = calls_shell("x")
    call["tool_calls"][0]["function"]["arguments"] = arguments
    endpoint[0].script = [call, says("done")]
    assert agent().returncode == 0
    assert endpoint[0].requests[1]["messages"][-1]["content"].startswith("error: call shell")


def test_it_needs_nothing_but_the_standard_library() -> None:
    imported = [line.split()[1] for line in AGENT.read_text().splitlines() if line.startswith("import ")]
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names
