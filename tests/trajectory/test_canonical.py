"""Canonical form: spellings that must not matter, and those that must."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.errors import BadInput
from gyre.trajectory.answers import parse_answer
from gyre.trajectory.canonical import (
    CanonicalRequest,
    Message,
    ToolCall,
    assistant,
    chain_keys,
    extend_key,
    request_key,
    restore,
)
from gyre.trajectory.dialects import from_anthropic, from_openai, parse_body


def key_of(request: CanonicalRequest) -> str:
    return request_key(chain_keys(request.tools, request.messages)[-1], request.model)


def ask(*messages: dict[str, Any], **more: Any) -> CanonicalRequest:
    return from_anthropic({"model": "m", "messages": list(messages), **more})


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_a16_billing_header_does_not_enter() -> None:
    def system(*texts: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": text} for text in texts]

    first = ask(user("x"), system=system("x-anthropic-billing-header: cch=1", "be good"))
    second = ask(user("x"), system=system("x-anthropic-billing-header: cch=2", "be good"))
    assert first.messages[0] == Message("system", ("be good",))
    assert key_of(first) == key_of(second) == key_of(ask(user("x"), system="be good"))


def test_a18_cache_control_and_list_or_string_do_not_matter() -> None:
    marked = user([{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}])
    assert key_of(ask(marked)) == key_of(ask(user("x")))


def test_stream_and_sampling_wishes_do_not_enter() -> None:
    assert key_of(ask(user("x"), stream=True, temperature=0, max_tokens=3)) == key_of(ask(user("x")))


@pytest.mark.parametrize(
    "other",
    [
        ask(user("y")),
        ask(user("x"), model="other"),
        ask(user("x"), tools=[{"name": "t", "input_schema": {}}]),
        ask(user("x"), system="s"),
        ask(user([{"type": "text", "text": "x"}, {"type": "text", "text": "y"}])),
        ask({"role": "system", "content": "x"}),
    ],
)
def test_what_is_said_matters(other: CanonicalRequest) -> None:
    assert key_of(other) != key_of(ask(user("x")))


def test_system_messages_in_the_middle_stay_in_place() -> None:
    roles = [m.role for m in ask(user("a"), {"role": "system", "content": "b"}, user("c")).messages]
    assert roles == ["user", "system", "user"]


def test_tool_results_stand_in_their_place() -> None:
    result = {"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text", "text": "r"}]}
    messages = ask(user([result, {"type": "text", "text": "more"}])).messages
    assert messages == (Message("tool", ("r",), tool_call_id="i"), Message("user", ("more",)))


def test_a2_tool_calls_are_kept_and_both_dialects_agree() -> None:
    anthropic = ask(
        user("x"),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "f", "input": {"a": 1}}]},
        user([{"type": "tool_result", "tool_use_id": "i", "content": "r"}]),
    )
    call = {"id": "i", "type": "function", "function": {"name": "f", "arguments": '{ "a":1 }'}}
    openai = from_openai(
        {
            "model": "m",
            "messages": [
                user("x"),
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "i", "content": "r"},
            ],
        }
    )
    assert anthropic.messages[1].tool_calls[0].name == "f"
    assert key_of(anthropic) == key_of(openai)


def test_rewritten_arguments_are_restored_by_call_id() -> None:
    sampled = assistant("I edit.", [ToolCall("i", "Edit", '{"path": "a"}')])
    echoed = assistant("", [ToolCall("i", "Edit", '{"replace_all": false, "path": "a"}')])
    assert restore([echoed], {"i": sampled}) == (sampled,)
    fewer = assistant("", [ToolCall("j", "Edit", "{}")])
    assert restore([fewer], {"i": sampled}) == (fewer,)


def test_reasoning_is_in_no_key() -> None:
    assert chain_keys((), [assistant("x", reasoning="why")]) == chain_keys((), [assistant(" x\n")])


@given(st.lists(st.text(max_size=5), min_size=1, max_size=6))
def test_keys_extend_one_message_at_a_time(texts: list[str]) -> None:
    messages = [Message("user", (text,)) for text in texts]
    keys = chain_keys((), messages)
    assert chain_keys((), messages[:-1]) == keys[:-1]
    if len(keys) > 1:
        assert extend_key(keys[-2], messages[-1]) == keys[-1]


def test_halves_of_surrogate_pairs_become_replacement_characters() -> None:
    body = parse_body(
        b'{"messages": [{"role": "user", "content": "cut \\ud83d"}], "model": "\\ud83d\\ude00"}'
    )
    request = from_anthropic(body)
    assert request.messages[0].content == ("cut \ufffd",)
    assert request.model == "\U0001f600"
    assert key_of(request)


def test_parts_that_are_no_text_get_one_sentence() -> None:
    with pytest.raises(BadInput, match="'image' cannot be read"):
        ask(user([{"type": "image", "source": {}}]))
    with pytest.raises(BadInput, match="only client tools"):
        ask(user("x"), tools=[{"type": "web_search_20250305", "name": "web_search"}])


def read(text: str, *, in_thinking: bool = False):
    return parse_answer(text, call_id="c", prefix="call_", in_thinking=in_thinking)


def test_tool_calls_are_read_with_ids_of_their_own() -> None:
    answer = read(
        'Go.\n<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>\n'
        '<tool_call>{"name": "g"}</tool_call>'
    )
    assert answer.text == "Go."
    assert [(c.name, c.arguments) for c in answer.tool_calls] == [("f", '{"a": "é"}'), ("g", "{}")]
    assert len({c.id for c in answer.tool_calls}) == 2
    assert answer.num_malformed == 0
    assert read('<tool_call>{"name": "g"}</tool_call>').tool_calls[0].id == answer.tool_calls[0].id


@pytest.mark.parametrize(
    "payload",
    [
        "{",
        "[]",
        '{"arguments": {}}',
        '{"name": 3}',
        '{"name": "f", "arguments": "x"}',
        '{"name": "\\u0000"}',
        '{"name": "f", "arguments": {"x": NaN}}',
        "[" * 100_000,
        "<function=f><parameter=a>1</parameter></function>",
    ],
)
def test_a8_a9_malformed_calls_stay_in_the_text_and_are_counted(payload: str) -> None:
    written = f"a <tool_call>{payload}</tool_call> b"
    answer = read(written)
    assert (answer.text, answer.tool_calls, answer.num_malformed) == (written, (), 1)
    assert read('cut <tool_call>{"name": "f"').num_malformed == 1


def test_reasoning_is_split_off() -> None:
    assert (read("<think>\nwhy\n</think>\n\nyes").reasoning, read("<think>w</think>yes").text) == (
        "why",
        "yes",
    )
    assert read("why</think>yes", in_thinking=True).reasoning == "why"
    assert read("<think>cut off").text == ""
    assert read("no <think> here").text == "no <think> here"


@given(st.text())
def test_no_sampled_text_breaks_the_record(text: str) -> None:
    for written in (
        text,
        f"<tool_call>{text}</tool_call>",
        f'<tool_call>{{"name": "f", "arguments": {{"x": {json.dumps(text)}}}}}',
    ):
        answer = read(f"{written}\0")
        stored = json.dumps(answer.as_json(), ensure_ascii=False).encode()
        assert type(answer).from_json(json.loads(stored)) == answer
        assert "\0" not in answer.text
