"""The demo's tokenizer encodes any text, keeps conversations short, and its template only ever appends."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from app.demo.harness import AGENT, SHELL
from app.demo.tasks import Kind, notes, request, solution
from app.demo.tokenizer import IM_END, IM_START, PHRASES, encode, render, token_id

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
PIECES = st.lists(st.one_of(TEXT, st.sampled_from([*PHRASES, IM_END, IM_START, " ", "\n"])), max_size=8)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw a user message, then turns with or without tool calls, each with its results."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": draw(TEXT)}]
    for _ in range(draw(st.integers(0, 3))):
        commands = draw(st.lists(TEXT, max_size=2))
        calls = [
            {"type": "function", "function": {"name": "shell", "arguments": {"command": command}}}
            for command in commands
        ]
        messages.append(
            {"role": "assistant", "content": draw(TEXT), **({"tool_calls": calls} if calls else {})}
        )
        messages += [{"role": "tool", "content": draw(TEXT)} for _ in calls]
        messages += [] if calls else [{"role": "user", "content": draw(TEXT)}]
    return messages


@settings(max_examples=200, deadline=None)
@given(pieces=PIECES)
def test_decoding_returns_any_encoded_text(tokenizer: PreTrainedTokenizerFast, pieces: list[str]) -> None:
    text = "".join(pieces)
    assert tokenizer.decode(encode(tokenizer, text)) == text


def test_a_saved_tokenizer_reloads_unchanged(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = f"{IM_START}user\n{request(Kind.PLAIN, 'tamok')} é🙂{IM_END}"
    assert loaded.encode(text) == encode(tokenizer, text)
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.eos_token == IM_END
    assert loaded.chat_template == tokenizer.chat_template


@settings(max_examples=100, deadline=None)
@given(messages=conversations(), with_tools=st.booleans())
def test_a_shorter_conversation_renders_as_a_prefix_of_a_longer_one(
    tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, Any]], with_tools: bool
) -> None:
    tools = [SHELL, AGENT] if with_tools else []
    whole = render(tokenizer, messages, tools)
    for end in range(1, len(messages) + 1):
        assert whole.startswith(render(tokenizer, messages[:end], tools))
        if end < len(messages) and messages[end]["role"] == "assistant":
            assert whole.startswith(render(tokenizer, messages[:end], tools, prompt=True))


@settings(max_examples=100, deadline=None)
@given(messages=conversations())
def test_a_suffix_encoded_separately_has_the_same_tokens(
    tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, Any]]
) -> None:
    whole = render(tokenizer, messages, [SHELL])
    for end in range(1, len(messages)):
        head = render(tokenizer, messages[:end], [SHELL])
        assert encode(tokenizer, whole) == encode(tokenizer, head) + encode(tokenizer, whole[len(head) :])


def test_a_tool_call_is_rendered_as_it_is_sampled(tokenizer: PreTrainedTokenizerFast) -> None:
    command = 'echo "ü" > a'
    call = {"type": "function", "function": {"name": "shell", "arguments": {"command": command}}}
    as_text = {"type": "function", "function": {"name": "shell", "arguments": json.dumps({"command": "x"})}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call, as_text]}]
    payload = json.dumps({"name": "shell", "arguments": {"command": command}}, ensure_ascii=False)
    second = json.dumps({"name": "shell", "arguments": {"command": "x"}})
    assert render(tokenizer, messages, []) == (
        f"{IM_START}assistant\n<tool_call>\n{payload}\n</tool_call>\n"
        f"<tool_call>\n{second}\n</tool_call>{IM_END}\n"
    )


def test_content_parts_are_joined(tokenizer: PreTrainedTokenizerFast) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(tokenizer, [{"role": "user", "content": parts}], []) == f"{IM_START}user\nab{IM_END}\n"


def test_a_conversation_has_few_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    call = {"type": "function", "function": {"name": "shell", "arguments": {"command": solution("tamok")}}}
    asked = [{"role": "user", "content": request(Kind.PLAIN, "tamok")}]
    prompt = render(tokenizer, asked, [SHELL, AGENT], prompt=True)
    answer = render(tokenizer, [{"role": "assistant", "content": "", "tool_calls": [call]}], [])
    assert len(encode(tokenizer, prompt)) <= 24
    assert len(encode(tokenizer, answer)) <= 32
    assert len(encode(tokenizer, notes("tamok"))) <= 20


@pytest.mark.parametrize("token", [IM_END, IM_START, *PHRASES])
def test_phrases_are_single_tokens(tokenizer: PreTrainedTokenizerFast, token: str) -> None:
    assert encode(tokenizer, token) == [token_id(tokenizer, token)]
