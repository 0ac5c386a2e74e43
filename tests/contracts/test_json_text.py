"""JSON text and the hashes made from it: both stay byte for byte as earlier versions stored them.

The expected values come from commit 8981c5d. If one changes, runs no longer resume, retries no longer find
their calls, or prompts are tokenized differently: fix the code, not the value.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.stack.spec import ProcessSpec
from gyre.contracts.json_text import canonical_json, compact_json, indented_json, json_line, prompt_json
from gyre.settings.runfile import fingerprint_of
from gyre.trajectory.answers import parse_answer, short_hash
from gyre.trajectory.arrays import as_ids, as_logprobs, output_sha256
from gyre.trajectory.canonical import Message, ToolCall, assistant, chain, request_key

VALUE: dict[str, Any] = {"b": "é \u2028", "a": [1.0, 1e16, -0.0, {"x": None, "B": True}]}
WRITTEN = {
    "compact": '{"b":"é \u2028","a":[1.0,1e+16,-0.0,{"x":null,"B":true}]}',
    "canonical": '{"a":[1.0,1e+16,-0.0,{"B":true,"x":null}],"b":"\\u00e9 \\u2028"}',
    "canonical, spaced": '{"a": [1.0, 1e+16, -0.0, {"B": true, "x": null}], "b": "\\u00e9 \\u2028"}',
    "prompt": '{"b": "é \u2028", "a": [1.0, 1e+16, -0.0, {"x": null, "B": true}]}',
    "line": '{"b": "\\u00e9 \\u2028", "a": [1.0, 1e+16, -0.0, {"x": null, "B": true}]}\n',
}
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def test_each_writer_keeps_its_spacing_escapes_and_key_order() -> None:
    assert {
        "compact": compact_json(VALUE).decode(),
        "canonical": canonical_json(VALUE),
        "canonical, spaced": canonical_json(VALUE, spaced=True),
        "prompt": prompt_json(VALUE),
        "line": json_line(VALUE).decode(),
    } == WRITTEN
    assert indented_json({"a": [Path("x")]}, default=str) == '{\n  "a": [\n    "x"\n  ]\n}'


@given(JSON)
def test_every_writer_keeps_the_value(value: Any) -> None:
    texts = (
        compact_json(value),
        canonical_json(value),
        canonical_json(value, spaced=True),
        prompt_json(value),
        json_line(value),
        indented_json(value),
    )
    for text in texts:
        assert json.loads(text) == value


def test_long_integers_are_written_the_same_way() -> None:
    """orjson refuses them, so Python's own writer is used, which must not add spaces."""
    assert compact_json({"b": "é", "a": [2**70]}) == '{"b":"é","a":[1180591620717411303424]}'.encode()


def test_lone_surrogates_are_refused_on_the_wire_and_kept_on_control_sockets() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        compact_json({"path": "\udcff"})
    assert json.loads(json_line({"path": "\udcff"})) == {"path": "\udcff"}


def test_conversation_and_request_keys_are_those_of_stored_runs() -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "number", "default": 1e16}}}
    function = {"name": "bash", "description": "Führe aus", "parameters": parameters}
    spelled = '{"z": 1.0, "a": "\\u00e9 é", "big": 123456789012345678901234567890, "e": 1e16}'
    calls = [ToolCall("call_1", "bash", spelled), ToolCall("call_2", "bash", "{not json")]
    messages = [
        Message("system", ("Be brief — “naïve” 🍎",)),
        Message("user", ('a\n\t"b"', "\u2028")),
        assistant(" I look. ", calls, reasoning="hm"),
        Message("tool", ("r",), tool_call_id="call_1"),
    ]
    keys = chain([{"type": "function", "function": function}], messages, "m|template").keys
    assert keys == [
        "377da294d624631d0594ddd4f25a1483070de824aefa762090990ef46b24795b",
        "64ec545c88313a366b7a6751caf515dd43625bedb2acc2c16004d709aa854d27",
        "c5ce1740f7a7ba8ad27ddca6fc079aa7a8b79551243e91b847b868ce1b3a55c2",
        "9f0f06187c7a372b17984c7ba1637bdc24cf0c34683951f0e02d37ac9e247979",
    ]
    assert request_key(keys[-1], "m") == "dc98ac3dbc67047b1ac454467850def0bf04a20975ec56e98e6b4592e74f3694"


def test_the_fingerprint_of_a_run_is_that_of_stored_runs() -> None:
    resolved: dict[str, dict[str, Any]] = {
        "run": {"name": "é", "seed": 7, "control": "sync", "out": "/x"},
        "model": {"path": "/models/ü", "context_tokens": 4096, "eos": None},
        "tasks": {"train": "/tasks", "heldout": None},
        "harness": {"name": "tiny", "options": {}},
        "sampling": {"temperature": 1.0, "top_p": 1.0},
        "schedule": {"group_size": 8, "extra_dispatch": 2},
        "loss": {"clip_low": 0.005, "weight_cap": 1e16, "normalise_std": True},
    }
    expected = "a1e47a6daab3ade6f7e867b06a641084d05281b47e3aa010c7ff4b5fd80b8f04"
    assert fingerprint_of(resolved) == expected


def test_the_fingerprint_of_a_process_is_that_of_stored_ledgers() -> None:
    command, environment = ("postgres", "-D", "/état"), {"B": "2", "A": "1"}
    spec = ProcessSpec("postgres", command, Path("/tmp"), Path("/tmp/log"), environment, inputs="x")
    assert spec.fingerprint == "c655586b37c16fcde221ff7df5b0983a4c62f189dba6825c72392136342394d7"


def test_answers_are_stored_as_they_were_in_earlier_runs() -> None:
    """The text of tool arguments goes back into prompts, so its spacing decides their tokens."""
    sampled = (
        '<think>why</think>I run.\n<tool_call>\n{"name":"bash" , "arguments": '
        '{"b" :"\\u00e9 🍎","a":1e3,"n":[1.10,null]}}\n</tool_call><tool_call>\n'
        "<function=bash>\n<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>"
    )
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "bash", "parameters": schema}}]
    answer = parse_answer(sampled, call_id="run/r/call/1", prefix="call_", in_thinking=False, tools=tools)
    first, second = answer.as_json()["tool_calls"]
    assert first == {
        "id": "call_fe0865a95d2a2f9b1dc7868c",
        "name": "bash",
        "arguments": '{"b": "é 🍎", "a": 1000.0, "n": [1.1, null]}',
    }
    assert (second["id"], second["arguments"]) == ("call_e899a73d218577c0a88549a6", '{"n": 12}')
    assert short_hash("run/r/call/1") == "44e9543264f2ae1f55f60647"
    logprobs = as_logprobs([-0.5, -0.1, -3])
    expected = "052b5c707c3ff8defd24fc477d5abb7d9b5136b58b57c81f1e66274c007c7eb6"
    assert output_sha256(as_ids([1, 2, 3]), logprobs) == expected
