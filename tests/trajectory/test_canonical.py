"""The canonical form: differences that must not break a match, and those that must."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import AnthropicMessages, OpenAIChat, OpenAIResponses
from gateway.dialects.reading import parse_body
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
from gyre.trajectory.missing_ids import saying, with_recorded_ids

read_anthropic = AnthropicMessages().parse
read_openai = OpenAIChat().parse
read_responses = OpenAIResponses().parse


def key_of(request: CanonicalRequest) -> str:
    return request_key(chain(request.tools, request.messages).keys[-1], request.model)


def ask(*messages: dict[str, Any], **more: Any) -> CanonicalRequest:
    return read_anthropic({"model": "m", "messages": list(messages), **more})


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_the_billing_header_is_in_no_key() -> None:
    """Claude Code changes the hash in it with every request, which broke every prefix."""

    def system(*texts: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": text} for text in texts]

    first = ask(user("x"), system=system("x-anthropic-billing-header: cch=1", "be good"))
    second = ask(user("x"), system=system("x-anthropic-billing-header: cch=2", "be good"))
    assert first.messages[0] == Message("system", ("be good",))
    assert key_of(first) == key_of(second) == key_of(ask(user("x"), system="be good"))


def test_cache_markers_and_list_or_string_are_in_no_key() -> None:
    """Cache markers move from request to request, which changed the messages of a shared prefix."""
    marked = user([{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}])
    assert key_of(ask(marked)) == key_of(ask(user("x")))


def test_only_the_line_of_the_billing_header_is_dropped() -> None:
    """The rest stays where a harness joined its system blocks into one text."""
    joined = ask(user("x"), system="x-anthropic-billing-header: cch=1;\nbe good")
    assert joined.messages[0] == Message("system", ("be good",))


def test_volatile_fields_are_in_no_key() -> None:
    """Codex and Claude Code send sampling parameters, item ids, and metadata with counters and times."""
    metadata = {"metadata": {"user_id": "s1"}, "context_management": {}, "thinking": {"type": "enabled"}}
    sampling = {"stream": True, "temperature": 0, "max_tokens": 3}
    assert key_of(ask(user("x"), **sampling, **metadata)) == key_of(ask(user("x")))

    def codex(turn: int) -> CanonicalRequest:
        text = [{"type": "input_text", "text": "x"}]
        item = {"type": "message", "role": "user", "id": f"msg_{turn}", "content": text}
        counters = {"window_number": turn, "turn_started_at_unix_ms": turn}
        volatile = {"client_metadata": counters, "prompt_cache_key": str(turn), "include": ["a"] * turn}
        return read_responses({"model": "m", "input": [item], **volatile})

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
def test_other_content_changes_the_key(other: CanonicalRequest) -> None:
    assert key_of(other) != key_of(ask(user("x")))


TOOLS = [{"name": "t", "input_schema": {}}, {"name": "u", "input_schema": {}}]


def test_other_tools_or_another_order_of_them_change_the_key() -> None:
    keys = {key_of(ask(user("x"), tools=tools)) for tools in (TOOLS, TOOLS[::-1], TOOLS[:1], [])}
    assert len(keys) == 4


def test_another_model_or_template_changes_the_key() -> None:
    scopes = ("m|template", "m|other template", "other model|template")
    assert len({chain((), [Message("user", ("x",))], scope).keys[0] for scope in scopes}) == 3


def test_system_messages_in_the_middle_stay_in_place() -> None:
    roles = [m.role for m in ask(user("a"), {"role": "system", "content": "b"}, user("c")).messages]
    assert roles == ["user", "system", "user"]


def test_tool_results_become_messages_at_their_place() -> None:
    result = {"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text", "text": "r"}]}
    messages = ask(user([result, {"type": "text", "text": "more"}])).messages
    assert messages == (Message("tool", ("r",), tool_call_id="i"), Message("user", ("more",)))


def test_tool_calls_are_kept_and_both_dialects_agree() -> None:
    """A normalization that dropped tool calls would tokenize the next prompt differently."""
    anthropic = ask(
        user("x"),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "f", "input": {"a": 1}}]},
        user([{"type": "tool_result", "tool_use_id": "i", "content": "r"}]),
    )
    call = {"id": "i", "type": "function", "function": {"name": "f", "arguments": '{ "a":1 }'}}
    openai = read_openai(
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
        """Replace arguments by the JSON values they are compared as."""
        calls = [replace(call, arguments=value_of(call.arguments)) for call in message.tool_calls]
        return replace(message, tool_calls=tuple(calls))

    assert (message_bytes(one) == message_bytes(other)) == (values(one) == values(other))


def value_of(arguments: str) -> str:
    """Return a text per JSON value: ``1``, ``1.0`` and ``true`` are three values."""
    try:
        return "value " + json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return "text " + arguments


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=4), st.randoms())
def test_spacing_and_order_of_arguments_do_not_matter(arguments: dict[str, Any], random: Random) -> None:
    names = list(arguments)
    random.shuffle(names)
    respelled = json.dumps({name: arguments[name] for name in names}, ensure_ascii=False, indent=3)
    one, other = ToolCall("i", "f", json.dumps(arguments)), ToolCall("i", "f", respelled)
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


def test_calls_without_ids_get_those_of_their_own_conversation() -> None:
    """The same call was sampled twice here, and once in another conversation."""
    sampled = [assistant("", [ToolCall(f"id{i}", "f", '{"x": 1}')]) for i in range(3)]
    unnamed = assistant("", [ToolCall("#0", "f", '{ "x":1 }')])
    results = [Message("tool", ("r",), tool_call_id=f"id{i}") for i in range(2)]
    recorded = [Message("user", ("go",)), sampled[0], results[0], sampled[1], results[1]]
    elsewhere = chain((), [Message("user", ("no",)), sampled[2]]).keys
    known = {*chain((), recorded).keys, *elsewhere}
    result = Message("tool", ("r",), tool_call_id="#0")
    asked = [recorded[0], unnamed, result, unnamed, result]
    found = with_recorded_ids(first_key(()), asked, {saying(unnamed): sampled}, known)
    assert [message.tool_call_id for message in found if message.role == "tool"] == ["id0", "id1"]
    assert chain((), found).keys == chain((), recorded).keys
    stranger = [Message("user", ("who?",)), unnamed, result]
    assert with_recorded_ids(first_key(()), stranger, {saying(unnamed): sampled}, known) == tuple(stranger)


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
def test_keys_do_not_depend_on_what_was_hashed_before(
    before: list[Message], messages: list[Message], scopes: tuple[str, str], tools: bool
) -> None:
    """The conversation before may be a prefix, a sibling, or unrelated."""
    known = chain([{}] if tools else [], before, scopes[0])
    assert chain([], messages, scopes[1], known) == chain([], messages, scopes[1])


def test_lone_surrogates_become_replacement_characters() -> None:
    body = parse_body(
        b'{"messages": [{"role": "user", "content": "cut \\ud83d"}], "model": "\\ud83d\\ude00"}'
    )
    request = read_anthropic(body)
    assert request.messages[0].content == ("cut \ufffd",)
    assert request.model == "\U0001f600"
    assert key_of(request)


def test_parts_that_are_not_text_are_refused_in_one_sentence() -> None:
    with pytest.raises(BadInput, match="'image' cannot be read"):
        ask(user("x"), {"role": "assistant", "content": [{"type": "image", "source": {}}]})
    with pytest.raises(BadInput, match="only client tools"):
        ask(user("x"), tools=[{"type": "web_search_20250305", "name": "web_search"}])
