"""Canonical form: spellings that must not matter, and those that must."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.errors import BadInput
from gyre.trajectory.canonical import (
    BILLING_HEADER,
    CanonicalRequest,
    Message,
    ToolCall,
    assistant,
    chain,
    extend_key,
    first_key,
    message_bytes,
    request_key,
    restore,
    without_billing,
)
from gyre.trajectory.dialects import from_anthropic, from_openai, from_responses, parse_body
from gyre.trajectory.missing_ids import saying, with_recorded_ids


def key_of(request: CanonicalRequest) -> str:
    return request_key(chain(request.tools, request.messages).keys[-1], request.model)


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


def test_a16_only_the_line_of_the_billing_header_goes() -> None:
    """Also where a harness joined its system blocks to one text."""
    joined = ask(user("x"), system="x-anthropic-billing-header: cch=1;\nbe good")
    assert joined.messages[0] == Message("system", ("be good",))


def test_volatile_fields_do_not_enter() -> None:
    """Sampling wishes, ids of items, metadata with counters and times: all that Codex and Claude send."""
    told = {"metadata": {"user_id": "s1"}, "context_management": {}, "thinking": {"type": "enabled"}}
    wishes = {"stream": True, "temperature": 0, "max_tokens": 3}
    assert key_of(ask(user("x"), **wishes, **told)) == key_of(ask(user("x")))

    def codex(turn: int) -> CanonicalRequest:
        text = [{"type": "input_text", "text": "x"}]
        item = {"type": "message", "role": "user", "id": f"msg_{turn}", "content": text}
        counters = {"window_number": turn, "turn_started_at_unix_ms": turn}
        volatile = {"client_metadata": counters, "prompt_cache_key": str(turn), "include": ["a"] * turn}
        return from_responses({"model": "m", "input": [item], **volatile})

    assert key_of(codex(1)) == key_of(codex(2)) == key_of(ask(user("x")))


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


TOOLS = [{"name": "t", "input_schema": {}}, {"name": "u", "input_schema": {}}]


def test_other_tools_break_a_match_and_so_does_their_order() -> None:
    keys = {key_of(ask(user("x"), tools=tools)) for tools in (TOOLS, TOOLS[::-1], TOOLS[:1], [])}
    assert len(keys) == 4


def test_another_model_or_template_breaks_a_match() -> None:
    scopes = ("m|template", "m|other template", "other model|template")
    assert len({chain((), [Message("user", ("x",))], scope).keys[0] for scope in scopes}) == 3


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
    assert chain((), [assistant("x", reasoning="why")]).keys == chain((), [assistant(" x\n")]).keys


MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.lists(st.text(max_size=3), max_size=2).map(tuple),
    st.lists(
        st.builds(ToolCall, st.text(max_size=2), st.text(max_size=2), st.text(max_size=3)), max_size=2
    ).map(tuple),
    st.none() | st.text(max_size=2),
)


@given(MESSAGES, MESSAGES)
def test_distinct_messages_stay_distinct(one: Message, other: Message) -> None:
    def values(message: Message) -> Message:
        """With arguments as the JSON values that they are compared as."""
        calls = [replace(call, arguments=value_of(call.arguments)) for call in message.tool_calls]
        return replace(message, tool_calls=tuple(calls))

    assert (message_bytes(one) == message_bytes(other)) == (values(one) == values(other))


def value_of(arguments: str) -> str:
    """``1`` and ``1.0`` are two values here, as true and 1 are."""
    try:
        return "value " + json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return "text " + arguments


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=4), st.randoms())
def test_spacing_and_order_of_arguments_do_not_matter(arguments: dict[str, Any], random: Random) -> None:
    names = list(arguments)
    random.shuffle(names)
    respelt = json.dumps({name: arguments[name] for name in names}, ensure_ascii=False, indent=3)
    one, other = ToolCall("i", "f", json.dumps(arguments)), ToolCall("i", "f", respelt)
    assert message_bytes(assistant("", [one])) == message_bytes(assistant("", [other]))


LINES = st.lists(st.sampled_from([f"{BILLING_HEADER} cch=1;", "be good", ""]), max_size=4).map("\n".join)


@given(st.text() | LINES)
def test_canonical_forms_are_their_own_canonical_form(text: str) -> None:
    once = assistant(text)
    assert assistant(once.text) == once
    calls = (ToolCall("i", "f", "{}"),)
    recorded = {"i": assistant(text, calls)}
    restored = restore([assistant("", calls)], recorded)
    assert restore(restored, recorded) == restored
    assert without_billing(without_billing(text)) == without_billing(text)


def test_calls_without_ids_get_those_of_the_conversation_they_are_in() -> None:
    """The policy said the same twice, and another conversation has it too."""
    said = [assistant("", [ToolCall(f"id{i}", "f", '{"x": 1}')]) for i in range(3)]
    unnamed = assistant("", [ToolCall("#0", "f", '{ "x":1 }')])
    results = [Message("tool", ("r",), tool_call_id=f"id{i}") for i in range(2)]
    recorded = [Message("user", ("go",)), said[0], results[0], said[1], results[1]]
    elsewhere = chain((), [Message("user", ("no",)), said[2]]).keys
    known = {*chain((), recorded).keys, *elsewhere}
    result = Message("tool", ("r",), tool_call_id="#0")
    asked = [recorded[0], unnamed, result, unnamed, result]
    found = with_recorded_ids(first_key(()), asked, {saying(unnamed): said}, known)
    assert [message.tool_call_id for message in found if message.role == "tool"] == ["id0", "id1"]
    assert chain((), found).keys == chain((), recorded).keys
    stranger = [Message("user", ("who?",)), unnamed, result]
    assert with_recorded_ids(first_key(()), stranger, {saying(unnamed): said}, known) == tuple(stranger)


@given(st.lists(st.text(max_size=5), min_size=1, max_size=6))
def test_keys_extend_one_message_at_a_time(texts: list[str]) -> None:
    messages = [Message("user", (text,)) for text in texts]
    keys = chain((), messages).keys
    assert chain((), messages[:-1]).keys == keys[:-1]
    if len(keys) > 1:
        assert extend_key(keys[-2], messages[-1]) == keys[-1]


SHARED = st.lists(
    st.sampled_from([Message("user", ("a",)), Message("user", ("b",)), assistant("a")]), max_size=5
)


@given(before=SHARED, messages=SHARED, scopes=st.tuples(*[st.sampled_from("xy")] * 2), tools=st.booleans())
def test_what_was_hashed_before_changes_no_key(
    before: list[Message], messages: list[Message], scopes: tuple[str, str], tools: bool
) -> None:
    """The conversation that was asked for before may be its beginning, its sibling, or any other."""
    known = chain([{}] if tools else [], before, scopes[0])
    assert chain([], messages, scopes[1], known) == chain([], messages, scopes[1])


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
        ask(user("x"), {"role": "assistant", "content": [{"type": "image", "source": {}}]})
    with pytest.raises(BadInput, match="only client tools"):
        ask(user("x"), tools=[{"type": "web_search_20250305", "name": "web_search"}])
