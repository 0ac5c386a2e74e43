"""The tiny harness as a black box: a process against a chat completions endpoint."""

import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from app.demo import harness, tasks
from sandbox.adapters import load_adapter
from tests.sandbox.conftest import Gateway, calls, calls_shell, says

AGENT = Path(__file__).resolve().parents[2] / "examples" / "tiny_harness" / "agent.py"


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[tuple[Gateway, str]]:
    """Serve the scripted gateway over TCP."""
    scripted = Gateway(tmp_path / "unused")
    server = ThreadingHTTPServer(("127.0.0.1", 0), scripted._handler())
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield scripted, f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()


@pytest.fixture
def agent(tmp_path: Path, endpoint: tuple[Gateway, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*options: str, asked: str = "write a file") -> subprocess.CompletedProcess[str]:
        (tmp_path / "instruction.md").write_text(asked)
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
    assert offered(first) == ["shell", "agent"]
    # Earlier messages are sent again unchanged: a prefix that a gateway can match.
    assert second["messages"][:2] == [*first["messages"], gateway.script[0]]
    assert second["messages"][2] == {"role": "tool", "tool_call_id": "call_1", "content": "printed\nexit 3"}
    assert third["messages"][-1]["content"] == "one\n"


def offered(request: dict) -> list[str]:
    return [tool["function"]["name"] for tool in request["tools"]]


def test_a_sub_agent_starts_afresh_and_its_last_message_is_its_answer(
    endpoint, agent, tmp_path: Path
) -> None:
    gateway = endpoint[0]
    gateway.script = [
        calls("agent", {"prompt": "write it"}, 1),
        calls_shell("echo one > a", 2),
        says("written"),
        calls("agent", {"prompt": "look"}, 3),
        says("seen"),
        says("done"),
    ]
    assert agent().returncode == 0
    assert (tmp_path / "a").read_text() == "one\n"
    assert gateway.agents == [None, "1", "1", None, "2", None]
    assert gateway.requests[1]["messages"] == [{"role": "user", "content": "write it"}]
    assert offered(gateway.requests[1]) == ["shell"]
    assert [m["content"] for m in gateway.requests[5]["messages"][2::2]] == ["written", "seen"]


def test_a_sub_agent_has_no_sub_agents(endpoint, agent) -> None:
    prompt = calls("agent", {"prompt": "x"})
    endpoint[0].script = [prompt, prompt, says("gave up"), says("done")]
    assert agent().returncode == 0
    assert endpoint[0].requests[2]["messages"][-1]["content"] == "error: there is no tool agent; call shell"


def test_a_long_conversation_is_compacted(endpoint, agent) -> None:
    gateway = endpoint[0]
    gateway.script = [calls_shell("head -c 90 /dev/zero | tr '\\0' x", 1), says("ninety x"), says("done")]
    assert agent("--compact-chars", "100").returncode == 0
    before, asked, after = (request["messages"] for request in gateway.requests)
    # The request for a summary continues the conversation: its prefix is shared.
    assert asked[:1] == before
    assert asked[-1] == {"role": "user", "content": harness.SUMMARY_REQUEST}
    assert len(asked) == 4
    assert after == [{"role": "user", "content": f"write a file{harness.SUMMARY_HEAD}ninety x"}]
    assert len({str(request["tools"]) for request in gateway.requests}) == 1


def test_a_short_conversation_is_not_compacted(endpoint, agent) -> None:
    endpoint[0].script = [calls_shell("echo hi", 1), says("done")]
    assert agent("--compact-chars", "100").returncode == 0
    assert len(endpoint[0].requests[1]["messages"]) == 3


def test_the_first_line_may_name_the_tools(endpoint, agent) -> None:
    endpoint[0].script = [says("done")]
    assert agent(asked=f"{tasks.AGENT_ONLY}write a file").returncode == 0
    (request,) = endpoint[0].requests
    assert offered(request) == ["agent"]
    assert request["messages"][0]["content"] == "write a file"
    refused = agent(asked="tools: hammer\nwrite")
    assert refused.returncode == 1
    assert "no tool hammer (allowed: shell, agent)" in refused.stderr


def test_the_harness_uses_the_phrases_that_the_policy_is_taught() -> None:
    said = runpy.run_path(str(AGENT))
    assert said["SUMMARY_REQUEST"] == harness.SUMMARY_REQUEST
    assert said["SUMMARY_HEAD"] == harness.SUMMARY_HEAD
    rules = [rule for rule in load_adapter("tiny").roles if "summary" in rule.role]
    assert [rule.last_contains for rule in rules] == [harness.SUMMARY_REQUEST] * 2
    shown = {name: list(tool["function"]["parameters"]["properties"]) for name, tool in said["TOOLS"].items()}
    assert shown == {"shell": ["command"], "agent": ["prompt"]}


def test_it_stops_after_its_last_turn(endpoint, agent) -> None:
    endpoint[0].script = [calls_shell("true", number) for number in range(9)]
    assert agent("--max-turns", "3").returncode == 0
    assert len(endpoint[0].requests) == 3


def test_long_output_is_cut(endpoint, agent) -> None:
    endpoint[0].script = [calls_shell("head -c 5000 /dev/zero | tr '\\0' x"), says("done")]
    agent("--output-chars", "50")
    assert endpoint[0].requests[1]["messages"][-1]["content"] == "x" * 50


def test_busy_and_failing_servers_are_retried(endpoint, agent) -> None:
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
