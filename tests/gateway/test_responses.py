"""Features of Responses only: namespaces, custom tools, items that are sent back, echoed fields."""

import json
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import World, sse_events
from tests.gateway.scripted_engine import ScriptedEngine

SPAWN = {"type": "function", "name": "spawn", "parameters": {"type": "object"}}
TOOLS = [
    {"type": "namespace", "name": "agents", "tools": [SPAWN]},
    {"type": "custom", "name": "patch", "format": {"type": "text"}},
    {"type": "web_search"},
]
CALLS = "".join(
    f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    for name, arguments in (
        ("agents__spawn", {"task": "x"}),
        ("patch", {"input": "*** Begin\n+ä"}),
        ("patch", {"text": 3}),
        ("elsewhere", {}),
    )
)


def ask(http: httpx.Client, stream: bool, **body: Any) -> dict[str, Any]:
    """Return the whole response, streamed or not."""
    answer = http.post("/v1/responses", json={"model": "m", "stream": stream, "tools": TOOLS, **body})
    assert answer.status_code == 200, answer.text
    return sse_events(answer.text)[-1]["response"] if stream else answer.json()


@pytest.mark.parametrize("stream", [False, True])
def test_calls_have_the_form_of_their_tools(
    http: httpx.Client, gateway: World, engine: ScriptedEngine, stream: bool
) -> None:
    """Items that are sent back are found in the record, including namespaces and free texts."""
    engine.script = lambda request, prompt: "Done." if "tool_response" in prompt else CALLS
    items: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    output = ask(http, stream, input=items)["output"]
    calls = [(i["type"], i.get("namespace"), i["name"], i.get("input", i.get("arguments"))) for i in output]
    assert calls == [
        ("function_call", "agents", "spawn", '{"task": "x"}'),
        ("custom_tool_call", None, "patch", "*** Begin\n+ä"),
        ("custom_tool_call", None, "patch", '{"text": 3}'),
        ("function_call", None, "elsewhere", "{}"),
    ]
    results = [{"type": f"{i['type']}_output", "call_id": i["call_id"], "output": "ok"} for i in output]
    assert ask(http, stream, input=items + output + results)["status"] == "completed"
    assert len(gateway.leaves()) == 1


def test_custom_calls_are_streamed_with_their_own_events(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request, prompt: CALLS
    request = {"model": "m", "input": "go", "stream": True, "tools": TOOLS}
    events = sse_events(http.post("/v1/responses", json=request).text)
    filled = [
        (e["type"], e["delta"]) for e in events if "custom" in e["type"] and e["type"].endswith("delta")
    ]
    assert filled[0] == ("response.custom_tool_call_input.delta", "*** Begin\n+ä")
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


def test_the_request_is_echoed_without_its_bulk(http: httpx.Client) -> None:
    echoed = {
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "tool_choice": "required",
        "reasoning": {},
    }
    response = ask(http, False, input="go", instructions="be good", store=True, **echoed)
    assert {name: response[name] for name in echoed} == echoed
    assert (response["instructions"], response["tools"], response["store"]) == (None, [], False)


def test_a_stored_response_is_refused_in_one_sentence(http: httpx.Client) -> None:
    refused = http.post("/v1/responses", json={"model": "m", "input": "x", "previous_response_id": "resp_1"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("previous_response_id is not served")
