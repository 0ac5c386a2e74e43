"""Requests match the record, whatever a harness changes in the answers that it sends back."""

from itertools import pairwise
from typing import Any

import httpx
import pytest

from gyre.contracts.engine import GenerateRequest
from tests.gateway.conftest import World
from tests.gateway.scripted_engine import ScriptedEngine
from tests.gateway.wire import PATHS, request_in

EDIT = '<tool_call>\n{"name": "Edit", "arguments": {"path": "ä", "n": 1.0}}\n</tool_call>'


def edits(turns: int):
    """Make the same call at each turn but the last."""

    def script(request: GenerateRequest, prompt: str) -> str:
        return EDIT if prompt.count("<tool_response>") < turns - 1 else "All done."

    return script


def assert_one_path(gateway: World, turns: int) -> None:
    calls = gateway.calls()
    assert len(calls) == turns
    assert len(gateway.leaves()) == 1
    for before, after in pairwise(calls):
        assert after.num_reused_tokens == before.num_input_tokens + before.num_output_tokens


def test_edited_calls_and_moving_cache_marks_make_one_path(
    http: httpx.Client, gateway: World, engine: ScriptedEngine
) -> None:
    """Claude Code puts replace_all first, writes 1.0 as 1, and moves its cache mark from turn to turn.

    Reported elsewhere: the moving mark changed the messages, and so broke the match.
    """
    engine.script = edits(6)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for turn in range(6):
        marked = [{"type": "text", "text": f"x-anthropic-billing-header: cch={turn};"}]
        body = {"model": "m", "max_tokens": 99, "messages": messages, "system": marked}
        blocks = http.post(PATHS["anthropic"], json=body).raise_for_status().json()["content"]
        for block in blocks:
            if block["type"] == "tool_use":
                block["input"] = {"replace_all": False, "n": 1, "path": block["input"]["path"]}
        messages.append({"role": "assistant", "content": blocks})
        result = {"type": "tool_result", "tool_use_id": blocks[0].get("id"), "content": "ok"}
        for message in messages:
            if message["role"] == "user" and isinstance(message["content"], list):
                message["content"][0].pop("cache_control", None)
        messages.append({"role": "user", "content": [result | {"cache_control": {"type": "ephemeral"}}]})
    assert_one_path(gateway, 6)


@pytest.mark.parametrize("kept", [[], ["call"], ["call", "response"]], ids=["no ids", "calls'", "all"])
def test_google_without_ids_makes_one_path(
    http: httpx.Client, gateway: World, engine: ScriptedEngine, kept: list[str]
) -> None:
    """All turns are equal, so only its position shows which answer a call belongs to."""
    engine.script = edits(6)
    contents: list[dict[str, Any]] = [{"role": "user", "parts": [{"text": "go"}]}]
    for _ in range(6):
        answer = http.post(PATHS["google"], json={"contents": contents}).raise_for_status().json()
        content = answer["candidates"][0]["content"]
        call = content["parts"][-1].get("functionCall", {})
        response = {"id": call.get("id"), "name": call.get("name"), "response": {"output": "ok"}}
        if "call" not in kept:
            call.pop("id", None)
        if "response" not in kept:
            del response["id"]
        contents += [content, {"role": "user", "parts": [{"functionResponse": response}]}]
    assert_one_path(gateway, 6)


@pytest.mark.parametrize("change", ["model", "tools"])
def test_other_models_and_tools_fork(
    http: httpx.Client, gateway: World, engine: ScriptedEngine, change: str
) -> None:
    other = {"model": {"model": "n"}, "tools": {"tools": [{"name": "f", "input_schema": {}}]}}[change]
    for more in ({}, other):
        path, body = request_in("anthropic", "hi", "done", "again", max_tokens=9)
        if not more:
            http.post(path, json=body | {"messages": body["messages"][:1]}).raise_for_status()
        http.post(path, json=body | more).raise_for_status()
    calls = gateway.calls()
    assert [call.num_reused_tokens > 0 for call in calls] == [False, True, False]
    assert http.get("/health").json()["counts"]["forked"] == 1


def test_one_conversation_in_two_dialects_is_one_path(
    http: httpx.Client, gateway: World, engine: ScriptedEngine
) -> None:
    texts: list[str] = ["hi"]
    for dialect in ("openai", "anthropic", "responses", "google"):
        path, body = request_in(dialect, *texts, max_tokens=9)
        http.post(path, json=body).raise_for_status()
        texts += ["done", "again"]
    assert_one_path(gateway, 4)
