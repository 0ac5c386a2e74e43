"""Tool calls that do not parse show in health and in the log, without flooding it."""

import logging
from collections import Counter

import httpx
import pytest

from gateway.watch import LOG_EVERY_S, MANY_ANSWERS, CallWatch
from gyre.trajectory.answers import Answer, parse_answer
from tests.gateway.conftest import World
from tests.gateway.scripted_engine import ScriptedEngine
from tests.gateway.wire import PATHS

TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}


def answer(text: str) -> Answer:
    return parse_answer(text, call_id="c", prefix="call_", in_thinking=False)


def test_many_answers_without_a_call_are_an_alarm() -> None:
    """Reported elsewhere: a parser knew one markup form only, and training went on with no tool calls."""
    counts: Counter[str] = Counter()
    watch = CallWatch(counts)
    for _ in range(MANY_ANSWERS - 1):
        watch.note(answer("done"), offered=True)
        watch.note(answer("a title"), offered=False)
    assert watch.alarms == []
    watch.note(answer("done"), offered=True)
    assert f"last {MANY_ANSWERS} answers" in watch.alarms[0]
    watch.note(answer('<tool_call>{"name": "f"}</tool_call>'), offered=True)
    assert watch.alarms == []
    assert counts == {"answers_offered_tools": MANY_ANSWERS + 1, "tool_calls": 1, "malformed_tool_calls": 0}


def test_thousands_of_malformed_calls_are_one_line_per_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Reported elsewhere: thousands of lines about calls that failed to decode."""
    now = [0.0]
    watch = CallWatch(Counter(), lambda: now[0])
    with caplog.at_level(logging.WARNING, "gateway.watch"):
        for _ in range(3000):
            watch.note(answer('<tool_call>{"name": "f"}</tool_call><tool_call>{'), offered=True)
        assert [record.getMessage()[:30] for record in caplog.records] == ["1 tool calls could not be read"]
        now[0] += LOG_EVERY_S
        watch.note(answer("<tool_call>"), offered=True)
    assert caplog.records[-1].getMessage().startswith("3000 tool calls")
    assert len(caplog.records) == 2


def test_malformed_and_typed_calls_are_in_the_record(
    http: httpx.Client, gateway: World, engine: ScriptedEngine
) -> None:
    """One of two calls in Qwen3-Coder's form is cut off."""
    call = "<tool_call>\n<function=f>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>"
    engine.script = lambda request, prompt: f"{call}\n<tool_call>\n<function=f>\n<parameter=n>"
    body = {"model": "m", "max_tokens": 300, "messages": [{"role": "user", "content": "go"}], "tools": [TOOL]}
    blocks = http.post(PATHS["anthropic"], json=body).json()["content"]
    assert [block["type"] for block in blocks] == ["text", "tool_use"]
    assert blocks[1]["input"] == {"n": 7}
    assert gateway.calls()[0].num_malformed_tool_calls == 1
    health = http.get("/health").json()
    assert health["counts"]["malformed_tool_calls"] == health["counts"]["tool_calls"] == 1
    assert health["alarms"] == []
