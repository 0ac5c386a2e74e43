"""Reading requests: a dialogue has one canonical form in every dialect; rubbish is refused clearly."""

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import AnthropicMessages, GoogleGenerate, OpenAIChat, OpenAIResponses
from gateway.dialects.reading import parse_body
from gyre.contracts.errors import BadInput
from gyre.trajectory.canonical import CanonicalRequest, Message, ToolCall, assistant, message_bytes
from tests.gateway.dialogues import (
    JSON,
    Call,
    Dialogue,
    Turn,
    dialogues,
    in_anthropic,
    in_google,
    in_openai,
    in_responses,
)

read_anthropic = AnthropicMessages().parse
read_google = GoogleGenerate(model="m").parse
read_openai = OpenAIChat().parse
read_responses = OpenAIResponses().parse
READERS: dict[str, tuple[Callable[[Dialogue], dict[str, Any]], Callable[..., CanonicalRequest]]] = {
    "anthropic": (in_anthropic, read_anthropic),
    "openai": (in_openai, read_openai),
    "responses": (in_responses, read_responses),
    "google": (in_google, read_google),
}
RICH = Dialogue(
    "be brief",
    (Turn("go", "I look.", "hm", (Call("a", "f", {"x": 1}, "r"), Call("b", "g", {}, "s"))),),
    "and now?",
    (("f", "does f"), ("g", "")),
)


@given(dialogues())
def test_a_dialogue_has_the_same_canonical_form_in_every_dialect(dialogue: Dialogue) -> None:
    """A normalization that dropped tool calls would tokenize the next prompt differently."""
    read = {
        name: reader(parse_body(json.dumps(write(dialogue)).encode()))
        for name, (write, reader) in READERS.items()
    }
    forms = {
        name: (
            [(message_bytes(m), m.reasoning) for m in request.messages],
            request.tools,
            request.model,
        )
        for name, request in read.items()
    }
    assert forms["anthropic"] == forms["openai"] == forms["responses"] == forms["google"]
    calls = [call.id for message in read["google"].messages for call in message.tool_calls]
    assert calls == [call.id for turn in dialogue.turns for call in turn.calls]


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from paths(inner, (*path, key))


@pytest.mark.parametrize("dialect", READERS)
@pytest.mark.parametrize("rubbish", [None, True, 7, -1.5, "x", "", [], [[]], [3], {}, {"a": []}], ids=repr)
def test_rubbish_in_any_field_is_read_or_refused(dialect: str, rubbish: Any) -> None:
    """A reader returns a request that can be hashed and recorded, or refuses; it never fails otherwise."""
    write, reader = READERS[dialect]
    for path in paths(write(RICH)):
        body = copy.deepcopy(write(RICH))
        place: Any = body
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = rubbish
        try:
            request = reader(body)
        except BadInput:
            continue
        assert [message_bytes(message) for message in request.messages]
        assert json.dumps([request.requested, request.tools], allow_nan=False)


@given(st.dictionaries(st.sampled_from(["messages", "input", "contents", "tools", "system", "model"]), JSON))
def test_any_object_is_read_or_refused(body: dict[str, Any]) -> None:
    for _, reader in READERS.values():
        with contextlib.suppress(BadInput):
            assert reader(body).messages


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"a": "\\ud83d", "b": ' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"a": "\\ud83d", "b": NaN}',
        b'{"a": "\\ud83d", "b": ' + b"9" * 9000 + b"}",
        b'{"a": ' + b"9" * 9000 + b"}",
        b"null",
    ],
)
def test_bodies_that_a_json_column_rejects_are_refused(raw: bytes) -> None:
    with pytest.raises(BadInput, match="JSON"):
        parse_body(raw)


def test_only_finite_numbers_are_recorded_as_sampling_parameters() -> None:
    body = parse_body(
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999, "top_p": true}'
    )
    assert set(read_openai(body).requested) == {"model", "stream", "max_tokens"}


def responses(*items: dict[str, Any] | str, **more: Any) -> CanonicalRequest:
    return read_responses({"model": "m", "input": list(items), **more})


def test_responses_accepts_a_text_and_instructions() -> None:
    request = read_responses({"model": "m", "input": "hi", "instructions": "be good"})
    assert request.messages == (Message("system", ("be good",)), Message("user", ("hi",)))


def test_responses_items_of_one_answer_are_one_message() -> None:
    """A reasoning item begins the next answer, even where nothing separates the two."""
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}]}
    user = {"role": "user", "content": "go"}
    messages = responses(user, thought, text, call, thought, text).messages
    assert messages == (
        Message("user", ("go",)),
        assistant("one", [ToolCall("c", "f", "{}")], reasoning="why"),
        assistant("one", reasoning="why"),
    )


def test_responses_namespaces_are_flat_and_custom_tools_are_functions() -> None:
    spawn = {"type": "function", "name": "spawn", "parameters": {"type": "object"}}
    patch = {"type": "custom", "name": "patch", "description": "Edit.", "format": {"type": "text"}}
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: X"}
    tools = [
        {"type": "namespace", "name": "agents", "tools": [spawn]},
        patch,
        patch | {"name": "strict", "format": grammar},
        {"type": "web_search", "external_web_access": True},
    ]
    called = {
        "type": "function_call",
        "call_id": "c",
        "namespace": "agents",
        "name": "spawn",
        "arguments": "{}",
    }
    patched = {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "+ a"}
    request = responses({"role": "user", "content": "go"}, called, patched, tools=tools)
    functions = [tool["function"] for tool in request.tools]
    assert [function["name"] for function in functions] == ["agents__spawn", "patch", "strict"]
    assert functions[1]["parameters"]["required"] == ["input"]
    assert "lark grammar:\nstart: X" in functions[2]["description"]
    calls = request.messages[1].tool_calls
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("agents__spawn", {}),
        ("patch", {"input": "+ a"}),
    ]
    assert request.echo["namespaces"] == {"agents__spawn": ("agents", "spawn")}
    assert request.echo["custom"] == {"patch", "strict"}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"previous_response_id": "resp_1", "input": "x"}, "previous_response_id is not served"),
        ({"background": True, "input": "x"}, "background is not served"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "'item_reference' is not served"),
        ({"input": [{"role": "system", "content": [{"type": "input_image"}]}]}, "takes text only"),
        ({"input": "x", "tools": [{"type": "local_shell", "name": "s"}]}, "'local_shell' is not served"),
        ({"input": []}, "at least one message"),
        ({"input": 3}, "input must be a text or a list"),
    ],
)
def test_responses_names_what_it_refuses(body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_responses(body)


def test_parts_of_results_that_are_not_text_leave_a_note() -> None:
    """A tool may return an image: the policy reads a note, and the harness goes on."""
    note = "left out: this model takes text only]"
    block = {"type": "tool_result", "tool_use_id": "i", "content": [{"type": "image", "source": {}}]}
    image = {"type": "function_call_output", "call_id": "i", "output": [{"type": "input_image"}]}
    part = {"functionResponse": {"name": "f", "response": {"output": "a"}, "parts": [{"inlineData": {}}]}}
    read = [
        read_anthropic({"messages": [{"role": "user", "content": [block]}]}),
        responses(image),
        read_google({"contents": [{"role": "user", "parts": [part]}]}),
    ]
    assert [request.messages[0].content[-1] for request in read] == [
        f"[image {note}",
        f"[input_image {note}",
        f"[inlineData {note}",
    ]


def test_parts_of_the_users_turn_that_are_not_text_leave_a_note() -> None:
    """Some harnesses put tool output there. A refusal would repeat with every later request."""
    note = "left out: this model takes text only]"
    document, image = {"type": "document", "source": {}}, {"type": "image_url", "image_url": {}}
    read = [
        read_anthropic({"messages": [{"role": "user", "content": [document]}]}),
        read_openai({"messages": [{"role": "user", "content": [image]}]}),
        responses({"role": "user", "content": [{"type": "input_file"}]}),
        read_google({"contents": [{"role": "user", "parts": [{"fileData": {}}]}]}),
    ]
    assert [request.messages[0].content for request in read] == [
        (f"[document {note}",),
        (f"[image_url {note}",),
        (f"[input_file {note}",),
        (f"[fileData {note}",),
    ]
    for role in ("system", "assistant"):
        with pytest.raises(BadInput, match="takes text only"):
            read_anthropic({"messages": [{"role": role, "content": [document]}]})


def google(*contents: dict[str, Any], **more: Any) -> CanonicalRequest:
    return read_google({"contents": list(contents), **more})


@pytest.mark.parametrize("wrong", [0, False, "", -1])
def test_an_invalid_bound_is_refused_under_either_name(wrong: object) -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    for name in ("max_completion_tokens", "max_tokens"):
        with pytest.raises(BadInput, match="max_tokens"):
            read_openai(body | {name: wrong})
    assert read_openai(body | {"max_completion_tokens": None, "max_tokens": 7}).max_tokens == 7


def test_google_results_without_ids_answer_by_name_and_order() -> None:
    calls = [{"functionCall": {"id": id, "name": name}} for id, name in (("1", "f"), ("2", "g"), ("3", "f"))]
    results = [{"functionResponse": {"name": name, "response": {}}} for name in ("g", "f", "f", "f")]
    messages = google({"role": "model", "parts": calls}, {"role": "user", "parts": results}).messages
    assert [message.tool_call_id for message in messages[1:]] == ["2", "1", "3", ""]


def test_google_calls_without_ids_are_named_by_their_place() -> None:
    calls = [{"function_call": {"name": name, "args": {}}} for name in ("f", "f")]
    results = [{"function_response": {"name": "f", "response": {"result": text}}} for text in ("a", "b")]
    messages = google({"role": "model", "parts": calls}, {"role": "function", "parts": results}).messages
    assert [call.id for call in messages[0].tool_calls] == ["#0", "#1"]
    assert [(m.tool_call_id, m.content) for m in messages[1:]] == [("#0", ("a",)), ("#1", ("b",))]


def test_google_writes_errors_and_other_results_as_json() -> None:
    given = [{"error": "no"}, {"output": 3}, {"output": "a", "more": 1}, {}]
    results = [{"functionResponse": {"name": "f", "response": response}} for response in given]
    messages = google({"role": "user", "parts": results}).messages
    assert [message.text for message in messages] == [*(json.dumps(each) for each in given[:3]), ""]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"cachedContent": "c"}, "cachedContent is not served"),
        ({"generationConfig": {"candidateCount": 2}}, "only 1 answer"),
        ({"contents": [{"role": "king", "parts": []}]}, "role 'king'"),
        (
            {"contents": [{"role": "model", "parts": [{"inlineData": {}}]}]},
            "a part with inlineData cannot be read",
        ),
        ({"tools": [{"computerUse": {}}]}, "computerUse is not served"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "max_tokens = 0"),
    ],
)
def test_google_names_what_it_refuses(body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_google({"contents": [{"parts": [{"text": "x"}]}], **body})


def test_google_leaves_its_own_tools_out_and_reads_either_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "enum": ["STRING"]}}}
    capital = {"type": "OBJECT", "properties": {"a": {"type": "STRING", "enum": ["STRING"]}}}
    declared = [{"name": "f", "parameters": capital}, {"name": "f", "parametersJsonSchema": schema}]
    user = {"parts": [{"text": "x"}]}
    request = google(user, tools=[{"google_search": {}}, {"functionDeclarations": declared}])
    assert request.tools[0] == request.tools[1]
    assert replace(request, tools=()) == google(user)
