"""A8 and A9: calls that are not read are seen, by health and in the log, without flooding it."""

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


def test_a8_no_call_at_all_is_an_alarm() -> None:
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


def test_a9_thousands_of_malformed_calls_are_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
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


def test_a9_malformed_and_typed_calls_are_in_the_record(
    http: httpx.Client, gateway: World, engine: ScriptedEngine
) -> None:
    """The form of Qwen3-Coder over the wire, with one call cut off."""
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
