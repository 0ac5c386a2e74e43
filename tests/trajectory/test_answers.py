"""Sampled text to reasoning, text and calls, in both forms; malformed markup stays and is counted."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.trajectory.answers import Answer, parse_answer, said_so_far
from gyre.trajectory.strict_json import read_json

SCHEMA = {
    "n": {"type": "integer"},
    "x": {"type": "number"},
    "yes": {"type": "boolean"},
    "some": {"anyOf": [{"type": "array"}, {"type": "null"}]},
    "text": {"type": "string"},
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": SCHEMA}}}


def read(text: str, *, in_thinking: bool = False, tools: Any = (TOOL,)) -> Answer:
    return parse_answer(text, call_id="c", prefix="call_", in_thinking=in_thinking, tools=tools)


def function(*parameters: tuple[str, str], name: str = "f") -> str:
    """Write a call as Qwen3-Coder's template does."""
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def arguments(answer: Answer) -> list[Any]:
    return [json.loads(call.arguments) for call in answer.tool_calls]


def test_each_json_call_gets_its_own_id() -> None:
    answer = read(
        'Go.\n<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>\n'
        '<tool_call>{"name": "g"}</tool_call>'
    )
    assert answer.text == "Go."
    assert [(c.name, c.arguments) for c in answer.tool_calls] == [("f", '{"a": "é"}'), ("g", "{}")]
    assert len({c.id for c in answer.tool_calls}) == 2
    assert answer.num_malformed == 0
    assert read('<tool_call>{"name": "g"}</tool_call>').tool_calls[0].id == answer.tool_calls[0].id


def test_json_arguments_may_contain_the_markup() -> None:
    written = {"text": "a </tool_call> b <tool_call>{ </think>"}
    answer = read(f"<tool_call>{json.dumps({'name': 'f', 'arguments': written})}</tool_call> then")
    assert (arguments(answer), answer.text, answer.num_malformed) == ([written], "then", 0)


def test_json_values_keep_their_types() -> None:
    """Only the form without types takes them from the schema."""
    assert arguments(read('<tool_call>{"name": "f", "arguments": {"n": "1"}}</tool_call>')) == [{"n": "1"}]


def test_function_calls_are_typed_by_the_schema() -> None:
    parameters = [
        ("n", "12"),
        ("x", "1.5"),
        ("yes", "True"),
        ("some", "[1, {}]"),
        ("text", "12"),
        ("other", "12"),
    ]
    answer = read("Go.\n" + function(*parameters) + "\n" + function(("n", "many"), ("some", "null")))
    expected = {"n": 12, "x": 1.5, "yes": True, "some": [1, {}], "text": "12", "other": "12"}
    assert arguments(answer) == [expected, {"n": "many", "some": None}]
    assert (answer.text, answer.num_malformed) == ("Go.", 0)


def test_function_values_keep_their_spaces_and_tags() -> None:
    """One line break on either side belongs to the markup; indentation belongs to the value."""
    code = "\n    if x:\n        return '</parameter>' + </function>\n"
    (answer,) = arguments(read(function(("text", code), ("n", "1"))))
    assert answer == {"text": code, "n": 1}
    inline = "<tool_call><function=f><parameter=text> a </parameter></function></tool_call>"
    assert arguments(read(inline)) == [{"text": " a "}]
    assert arguments(read(function())) == [{}]


def test_one_answer_may_use_both_forms() -> None:
    answer = read('<tool_call>{"name": "g"}</tool_call>' + function(("n", "1")))
    assert [call.name for call in answer.tool_calls] == ["g", "f"]


MALFORMED = [
    "{",
    "[]",
    "",
    "hello",
    '{"arguments": {}}',
    '{"name": 3}',
    '{"name": ""}',
    '{"name": "f", "arguments": "x"}',
    '{"name": "f", "parameters": {"x": 1}}',
    '{"name": "\\u0000"}',
    '{"name": "f<|im_end|>"}',
    '{"name": "f", "arguments": {"x": NaN}}',
    '{"name": "f", "arguments": {"x": 1e999}}',
    '{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}",
    '{"name": "f", "arguments": {"x": ' + "[" * 300 + "]" * 300 + "}}",
    '{"name": "f"} {"name": "g"}',
    "[" * 100_000,
    "<function=f>",
    "<function=>\n</function>",
    "<function=f><parameter=n>1</function>",
    "<function=f>n = 1</function>",
    "<function=f><parameter=n>1</parameter>",
    "<function=f><parameter=n>1</parameter></function> and more",
    "<function=f><parameter=some>[NaN]</parameter></function>",
]


@pytest.mark.parametrize("payload", MALFORMED, ids=lambda payload: payload[:40])
def test_malformed_calls_stay_in_the_text_and_are_counted(payload: str) -> None:
    """Elsewhere they only filled the log, and runs trained with no tool calls at all."""
    written = f"a <tool_call>{payload}</tool_call> b"
    answer = read(written)
    assert (answer.text, answer.tool_calls, answer.num_malformed) == (written, (), 1)


@pytest.mark.parametrize(
    "written",
    [
        'cut <tool_call>{"name": "f"',
        "cut <tool_call>\n<function=f>\n<parameter=n>\n1",
        "cut <tool_call><function=f><parameter=n>1</parameter></function>",
        "<function=f>\n<parameter=n>\n1\n</parameter>\n</function>",
        '{"name": "f"}</tool_call>',
    ],
)
def test_calls_that_were_cut_off_are_counted_and_not_made(written: str) -> None:
    answer = read(written)
    assert (answer.text, answer.tool_calls, answer.num_malformed) == (written, (), 1)


def test_a_good_call_is_read_after_a_bad_one() -> None:
    good = '<tool_call>{"name": "g"}</tool_call>'
    for bad in ("<tool_call>{", "<tool_call><function=f><parameter=n>1", '<tool_call>{"name": "f"}'):
        answer = read(f"{bad} {good} {bad}")
        assert ([call.name for call in answer.tool_calls], answer.num_malformed) == (["g"], 2)
        assert answer.text == f"{bad}  {bad}"


def repeated(num: int) -> dict[str, str]:
    """Return answers with ``num`` tags that almost make a call."""
    parameters = "<parameter=n>1</parameter>" * num
    return {
        "junk before the end": f"<tool_call><function=f>{parameters}junk</function></tool_call>",
        "the last one open": f"<tool_call><function=f>{parameters}<parameter=n>1</function></tool_call>",
        "openings": "<tool_call>" * num + "</tool_call>",
        "openings of objects": '<tool_call>{"' * num + "</tool_call>",
        "openings with spaces": "<tool_call>\n <" * num + "</tool_call>",
        "openings of functions": "<tool_call><function=f>" * num + "</tool_call>",
        "ends of values": f"<tool_call><function=f><parameter=n>{'</parameter>x' * num}</tool_call>",
    }


@pytest.mark.parametrize("num", [1, 2, 12, 2000, 10_000])
@pytest.mark.parametrize("kind", repeated(1))
def test_repeated_tags_are_read_in_linear_time(kind: str, num: int) -> None:
    """A backtracking expression needed a minute for twelve parameters."""
    answer = read(repeated(num)[kind])
    assert (answer.tool_calls, answer.num_malformed > 0) == ((), True)


def test_many_parameters_and_spaces_are_a_call() -> None:
    many = [(f"k{i}", "</parameter>") for i in range(2000)]
    written = function(*many).replace("</function>", "\n" * 20_000 + "</function>")
    assert arguments(read(written)) == [{key: "</parameter>" for key, _ in many}]


@pytest.mark.parametrize("properties", [3, [], {"n": 3}, {"n": {"type": 3}}, {"n": {"anyOf": 3}}])
def test_rubbish_in_a_schema_does_not_raise(properties: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}
    answer = read(function(("n", "1")), tools=[tool, {}, {"function": 3}])
    assert len(answer.tool_calls) + answer.num_malformed == 1


def test_reasoning_is_split_off() -> None:
    assert (read("<think>\nwhy\n</think>\n\nyes").reasoning, read("<think>w</think>yes").text) == (
        "why",
        "yes",
    )
    assert read("why</think>yes", in_thinking=True).reasoning == "why"
    assert read("<think>cut off").text == ""
    assert read("no <think> here").text == "no <think> here"


def test_calls_in_reasoning_that_never_ends_are_counted() -> None:
    call = '<tool_call>{"name": "g"}</tool_call>'
    lost = read(f"<think>I call {call}")
    assert (lost.tool_calls, lost.num_malformed) == ((), 1)
    thought = read(f"<think>I could call {call}</think>No.")
    assert (thought.text, thought.tool_calls, thought.num_malformed) == ("No.", (), 0)


PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<parameter=n>",
        "</parameter>",
        '{"name": "f", "arguments": {"x": 1}}',
        "\n",
        " ",
        "<",
        "</",
        "word",
        "é",
        "\0",
    ]
)
WRITTEN = st.lists(PIECES | st.text(max_size=4), max_size=14).map("".join)


@given(WRITTEN, st.booleans())
def test_any_sampled_text_can_be_recorded(text: str, in_thinking: bool) -> None:
    answer = read(text, in_thinking=in_thinking)
    stored = json.dumps(answer.as_json(), ensure_ascii=False).encode()
    assert Answer.from_json(json.loads(stored)) == answer
    assert b"\0" not in stored
    for call in answer.tool_calls:
        assert isinstance(read_json(call.arguments), dict)
    if "<tool_call>" in answer.text:
        assert answer.num_malformed


@given(WRITTEN, st.booleans(), st.data())
def test_a_live_answer_is_a_prefix_of_the_whole_answer(
    text: str, in_thinking: bool, data: st.DataObject
) -> None:
    answer = read(text, in_thinking=in_thinking)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    before = ("", "")
    for cut in [*cuts, len(text)]:
        reasoning, sent = said_so_far(text[:cut], in_thinking=in_thinking)
        assert reasoning.startswith(before[0])
        assert sent.startswith(before[1])
        before = reasoning, sent
    assert (answer.reasoning or "").startswith(before[0])
    assert answer.text.startswith(before[1])


def test_text_is_sent_before_it_is_complete() -> None:
    sent = said_so_far("<think>a b\n</think>\n\nI look <tool_ca", in_thinking=False)
    assert sent == ("a b", "I look")
    assert said_so_far("I look <tool_bag", in_thinking=False) == ("", "I look <tool_bag")
    assert said_so_far("wh", in_thinking=True) == ("wh", "")
    assert said_so_far("caf\ufffd", in_thinking=False) == ("", "caf")
