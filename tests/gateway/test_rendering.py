"""Bridges between sampled answers and new messages, and the prompts of several turns."""

from pathlib import Path

import httpx
import pytest
from transformers import PreTrainedTokenizerFast

from gateway.rendering import Renderer
from gyre.contracts.errors import BadInput
from gyre.trajectory.canonical import Message, ToolCall, assistant
from tests.gateway.conftest import World
from tests.gateway.scripted_engine import Part, ScriptedEngine
from tests.gateway.test_calls import CHAT, chat, said
from tests.gateway.tiny_model import CHAT_TEMPLATE, build_tokenizer

USER = [Message("user", ("hi",))]
PLAIN = """{%- for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{%- endfor %}assistant: """
TOOLS_LAST = """{%- for m in messages %}
{%- if loop.last and tools %}{{ tools | tojson }}{%- endif %}
{{- '<|im_start|>' + m.role + m.content + '<|im_end|>\\n' }}{%- endfor %}"""


@pytest.fixture(scope="session")
def renderer(model_dir: Path) -> Renderer:
    return Renderer(model_dir)


def test_bridge_is_what_the_template_puts_after_the_stop_token(renderer: Renderer) -> None:
    """Reported elsewhere: the template's newline after the stop token was missing in training, or doubled."""
    answer, new = assistant("yes"), [Message("user", ("more",))]
    whole = renderer.full([*USER, answer, *new], ())
    head, sampled = renderer.full(USER, ()), "yes<|im_end|>"
    assert head + sampled + renderer.bridge(answer, new, (), stopped=True) == whole
    assert head + "yes" + renderer.bridge(answer, new, (), stopped=False) == whole
    pieces = [head, sampled, renderer.bridge(answer, new, (), stopped=True)]
    joined = [token for piece in pieces for token in renderer.encode(piece).tolist()]
    assert joined == renderer.encode(whole).tolist()


def test_bridge_gives_tool_results_their_calls(renderer: Renderer) -> None:
    """Reported elsewhere: a template refused a tool result without the assistant's call before it."""
    answer = assistant("", [ToolCall("a", "f", '{"x": "<|im_end|>"}'), ToolCall("b", "g", "{}")])
    new = [Message("tool", ("1",), tool_call_id="a"), Message("tool", ("2",), tool_call_id="b")]
    text = renderer.bridge(answer, new, (), stopped=True)
    assert text is not None
    assert text.startswith("\n<|im_start|>user\n<tool_response>\n1\n</tool_response>")
    with pytest.raises(BadInput, match="must follow a tool call"):
        renderer.full([*USER, *new], ())


SYSTEM_FIRST = CHAT_TEMPLATE.replace(
    "{%- for message in messages %}\n    {%- if message.role == 'user' or",
    "{%- for message in messages %}\n"
    "    {%- if message.role == 'system' and not loop.first %}{{- raise_exception('late') }}{%- endif %}\n"
    "    {%- if message.role == 'user' or",
)


def test_late_system_messages_become_the_users_if_the_template_wants_them_first(
    tmp_path: Path, renderer: Renderer
) -> None:
    """Claude Code and Codex send them in the middle; Qwen 3.5's template raises."""
    assert SYSTEM_FIRST != CHAT_TEMPLATE
    build_tokenizer(tmp_path, chat_template=SYSTEM_FIRST)
    strict, late = Renderer(tmp_path), [Message("system", ("late",))]
    first = Message("system", ("first",))
    assert renderer.bridge(assistant("a"), late, (), stopped=True) == (
        "\n<|im_start|>system\nlate<|im_end|>\n<|im_start|>assistant\n"
    )
    asked = "<|im_start|>user\nlate<|im_end|>\n<|im_start|>assistant\n"
    assert strict.bridge(assistant("a"), late, (), stopped=True) == f"\n{asked}"
    assert strict.full([first, *late], ()) == f"<|im_start|>system\nfirst<|im_end|>\n{asked}"


def test_templates_that_list_tools_late_get_them_in_the_bridge(tmp_path: Path) -> None:
    build_tokenizer(tmp_path, chat_template=TOOLS_LAST)
    text = Renderer(tmp_path).bridge(assistant("a"), USER, [{"name": "late"}], stopped=True)
    assert text is not None
    assert "late" in text


def test_template_without_turn_ends_is_rendered_in_full(tmp_path: Path) -> None:
    build_tokenizer(tmp_path, chat_template=PLAIN)
    assert Renderer(tmp_path).bridge(assistant("a"), USER, (), stopped=True) is None


@pytest.mark.parametrize("template", ["", None])
def test_model_without_template_is_bad_input(tmp_path: Path, template: str | None) -> None:
    if template is not None:
        build_tokenizer(tmp_path, chat_template=template)
    with pytest.raises(BadInput, match=r"model\.path"):
        Renderer(tmp_path)


def test_prompts_that_open_reasoning_are_recognized(tmp_path: Path) -> None:
    template = CHAT_TEMPLATE.replace(
        "<|im_start|>assistant\\n' }}{%- endif %}", "<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
    )
    build_tokenizer(tmp_path, chat_template=template)
    renderer = Renderer(tmp_path)
    assert renderer.opens_thinking(renderer.full(USER, ()))


def test_sampled_ids_are_never_encoded_again(
    http: httpx.Client, gateway: World, engine: ScriptedEngine, tokenizer: PreTrainedTokenizerFast
) -> None:
    """The policy samples hello as ["he", "llo"]; the tokenizer would encode it as ["hello"].

    Reported elsewhere: each turn decoded and re-encoded the sampled text.
    """
    split = [*tokenizer.convert_tokens_to_ids(["he", "llo"]), tokenizer.eos_token_id]
    assert tokenizer.encode("hello", add_special_tokens=False) != split[:2]
    engine.script = lambda request, prompt: Part(ids=split)
    assert said(http.post(CHAT, json=chat("hi"))) == "hello"
    http.post(CHAT, json=chat("hi", "hello", "again")).raise_for_status()
    first, second = (request.input_ids for request in engine.requests)
    assert second[: len(first) + 3] == [*first, *split]
    assert second.count(tokenizer.eos_token_id) == 3
    assert len(gateway.leaves()) == 1


def test_truncated_answers_get_their_turn_end_as_context(
    http: httpx.Client, gateway: World, engine: ScriptedEngine, tokenizer: PreTrainedTokenizerFast
) -> None:
    engine.script = lambda request, prompt: "abcdef"
    answer = http.post(CHAT, json=chat("hi", max_tokens=3)).json()["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == ("abc", "length")
    http.post(CHAT, json=chat("hi", "abc", "again")).raise_for_status()
    assert "abc<|im_end|>\n<|im_start|>user\nagain" in tokenizer.decode(engine.requests[1].input_ids)
    context, sampled, bridge, _ = gateway.nodes()
    assert (sampled.num_tokens, bridge.parent_id, bridge.parent_offset) == (3, sampled.id, 3)
    assert gateway.calls()[1].num_reused_tokens == context.num_tokens + 3


def test_changed_history_forks_and_is_counted(
    http: httpx.Client, gateway: World, engine: ScriptedEngine
) -> None:
    """Reported elsewhere: an assertion on the prefix ended the training."""
    http.post(CHAT, json=chat("hi")).raise_for_status()
    http.post(CHAT, json=chat("hi", "I never said that", "again")).raise_for_status()
    assert http.get("/health").json()["counts"]["forked"] == 1
    assert gateway.calls()[1].num_reused_tokens == 0
    nodes = gateway.nodes()
    assert nodes[2].parent_id == nodes[0].id
    assert len(gateway.leaves()) == 2


def test_omitted_reasoning_does_not_fork(http: httpx.Client, gateway: World, engine: ScriptedEngine) -> None:
    """Reported elsewhere: omitted reasoning split 8 rollouts into 64 samples."""
    engine.script = lambda request, prompt: "<think>\nsecret plan\n</think>\n\nyes"
    message = http.post(CHAT, json=chat("hi")).json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("yes", "secret plan")
    blocks = http.post("/v1/messages", json=chat("hi", max_tokens=99)).json()["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    http.post(CHAT, json=chat("hi", "yes", "again")).raise_for_status()
    assert "secret plan" in engine.tokenizer.decode(engine.requests[2].input_ids)
    assert gateway.calls()[2].num_reused_tokens > 0


@pytest.mark.parametrize("ids", [[0, 200, 255], [255] * 4], ids=["bytes", "no text"])
def test_any_bytes_that_the_policy_samples_are_recorded(
    http: httpx.Client, gateway: World, engine: ScriptedEngine, ids: list[int]
) -> None:
    engine.script = lambda request, prompt: Part(ids=[*ids, engine.tokenizer.eos_token_id])
    text = said(http.post(CHAT, json=chat("hi"))) or ""
    http.post(CHAT, json=chat("hi", text, "again")).raise_for_status()
    assert engine.requests[1].input_ids[len(engine.requests[0].input_ids) :][: len(ids)] == ids
