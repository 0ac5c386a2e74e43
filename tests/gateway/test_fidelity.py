"""Changes by harnesses break no prefix, and sampled tokens are neither lost nor extended."""

import socket
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from db.session import transaction
from gateway.rendering import Renderer
from gyre.trajectory.arrays import unpack_ids
from gyre.trajectory.canonical import Message, assistant
from tests.gateway.conftest import World
from tests.gateway.scripted_engine import Part, ScriptedEngine
from tests.gateway.wire import DIALECTS, PATHS, request_in, text_in

MESSAGES, CHAT = PATHS["anthropic"], PATHS["openai"]
TOOLS = [{"name": "Bash", "description": "run", "input_schema": {"type": "object"}}]
CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
FAMILIES = {
    "chatml": (
        "<|im_end|>",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    "llama": (
        "<|eot_id|>",
        "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    ),
    "gemma": (
        "<end_of_turn>",
        "<bos>{% for m in messages %}<start_of_turn>{{ m.role | replace('assistant', 'model') }}\n"
        "{{ m.content }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    ),
    "mistral": (
        "</s>",
        "<s>{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
        "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}",
    ),
    "deepseek": (
        "<|end_of_sentence|>",
        "{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}"
        "{% else %}<|Assistant|>{{ m.content }}<|end_of_sentence|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|Assistant|>{% endif %}",
    ),
}
"""Stop token and chat template of model families that end their turns differently."""
SPECIAL = (
    "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<s>", "</s>", "[INST]", "[/INST]",
    "<|User|>", "<|Assistant|>", "<|end_of_sentence|>",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_its_stop_token_once_between_turns(tmp_path: Path, family: str) -> None:
    """Reported elsewhere: the stop token was counted again as the delimiter of the next turn."""
    stop, template = FAMILIES[family]
    renderer = Renderer(write_tokenizer(tmp_path, stop, template))
    spoken = [Message("user", ("hi",))]
    ids = renderer.encode(renderer.full(spoken, ())).tolist()
    (stop_id,) = renderer.encode(stop).tolist()
    assert stop_id in renderer.stop_ids
    for turn in ("one", "two", "three"):
        sampled = [*renderer.encode(turn).tolist(), stop_id]
        new = [Message("user", ("more",))]
        bridge = renderer.bridge(assistant(turn), new, (), stopped=True)
        assert bridge is not None
        spoken += [assistant(turn), *new]
        ids += [*sampled, *renderer.encode(bridge).tolist()]
        assert ids == renderer.encode(renderer.full(spoken, ())).tolist()
    assert (stop_id, stop_id) not in set(pairwise(ids))


def write_tokenizer(folder: Path, stop: str, template: str) -> Path:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={symbol: n for n, symbol in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=stop, additional_special_tokens=[t for t in SPECIAL if t != stop]
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def marked(texts: Sequence[str], mark_at: int) -> list[dict[str, Any]]:
    """Build text blocks with a cache mark on one of them."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": each} for each in texts]
    blocks[mark_at]["cache_control"] = {"type": "ephemeral"}
    return blocks


def test_changes_by_claude_code_at_each_turn_leave_one_path(
    http: httpx.Client, gateway: World, engine: ScriptedEngine
) -> None:
    """At every turn the billing hash is new, the cache mark moves, and lists become strings.

    Reported elsewhere: each of these broke the prefix.
    """
    engine.script = lambda request, prompt: CALL
    messages: list[dict[str, Any]] = [{"role": "user", "content": marked(["hi", "<reminder>"], 1)}]
    for turn in range(6):
        billing = f"x-anthropic-billing-header: cc_version=2.1.220; cch={turn:05x};"
        system = marked([billing, "be good", "and brief"], turn % 3)
        body = {"model": "m", "max_tokens": 300, "system": system, "tools": TOOLS, "messages": messages}
        answer = http.post(MESSAGES, json=body).json()
        (call,) = [block for block in answer["content"] if block["type"] == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": f"ok {turn}"}
        marks = {"cache_control": {"type": "ephemeral"}}
        messages = [without_marks(message) for message in messages]
        messages += [
            {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": [result | marks]},
        ]
    assert len(gateway.leaves()) == 1
    calls = gateway.calls()
    for before, after in pairwise(calls):
        assert after.num_reused_tokens == before.num_input_tokens + before.num_output_tokens
    assert "billing" not in engine.tokenizer.decode(engine.requests[-1].input_ids)


def without_marks(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return message
    bare = [{k: v for k, v in block.items() if k != "cache_control"} for block in content]
    only_text = len(bare) == 1 and bare[0]["type"] == "text"
    return message | {"content": bare[0]["text"] if only_text else bare}


REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'the disk is full'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON tree_node EXECUTE FUNCTION refuse()"""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answer_that_cannot_be_recorded_is_not_released(
    http: httpx.Client, gateway: World, engine: ScriptedEngine, dialect: str, stream: bool
) -> None:
    """Reported elsewhere: a lost record looked complete because its failure was swallowed."""
    engine.script = lambda request, prompt: "the secret answer"
    path, body = request_in(dialect, "hi", max_tokens=99, stream=stream)
    with transaction(gateway.database) as session:
        session.execute(text(REFUSE))
    lost = http.post(path, json=body)
    assert "secret" not in lost.text
    assert "cannot be written" in lost.text
    assert stream or lost.status_code in (503, 529)
    (call,) = gateway.calls()
    assert (call.status, call.delivered_at, gateway.nodes()) == ("failed", None, [])
    with transaction(gateway.database) as session:
        session.execute(text("DROP TRIGGER refuse ON tree_node"))
    answered = http.post(path, json=body)
    assert "the secret answer" in answered.text
    assert [c.status for c in gateway.calls()] == ["failed", "committed"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_truncated_answer_is_marked_and_not_extended_when_it_is_sent_back_last(
    http: httpx.Client, gateway: World, engine: ScriptedEngine, dialect: str
) -> None:
    """If a harness asks to continue a truncated answer, a new turn follows and the truncated one stays."""
    engine.script = lambda request, prompt: "abcdef"
    path, body = request_in(dialect, "hi", max_tokens=3)
    said = text_in(dialect, http.post(path, json=body).json())
    assert said == "abc"
    cut = gateway.nodes()[1]
    assert (cut.finish_reason, gateway.calls()[0].finish_reason) == ("length", "length")
    path, body = request_in(dialect, "hi", said, max_tokens=3)
    http.post(path, json=body).raise_for_status()
    nodes = gateway.nodes()
    context, more = nodes[2:]
    assert (context.kind, context.parent_id, context.parent_offset) == ("context", cut.id, 3)
    # The end of the turn comes from the template: it was not sampled, so it is no training target.
    assert engine.tokenizer.decode(unpack_ids(context.token_ids).tolist()).startswith("<|im_end|>")
    assert (more.kind, more.parent_id) == ("sampled", context.id)
    unchanged = next(node for node in gateway.nodes() if node.id == cut.id)
    assert (unchanged.token_ids, unchanged.num_tokens) == (cut.token_ids, 3)


def test_an_answer_truncated_inside_a_tool_call_is_text_and_counted(
    http: httpx.Client, gateway: World, engine: ScriptedEngine
) -> None:
    engine.script = lambda request, prompt: Part(CALL[:40], finish="length")
    answer = http.post(CHAT, json={"model": "m", "messages": [{"role": "user", "content": "hi"}]}).json()
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", CALL[:40])
    assert gateway.calls()[0].num_malformed_tool_calls == 1


def test_an_aborted_answer_is_never_committed(
    http: httpx.Client, gateway: World, engine: ScriptedEngine
) -> None:
    """An answer that cells abort continues elsewhere until it stops or reaches its limit."""
    engine.script = lambda request, prompt: Part("ab", finish="abort")
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 7}
    answer = http.post(CHAT, json=body).json()["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == ("abababa", "length")
    assert [node.finish_reason for node in gateway.nodes()] == [None, "length"]
    assert [call.finish_reason for call in gateway.calls()] == ["length"]


def test_a_client_that_leaves_while_it_sends_is_not_logged_as_a_bug(
    http: httpx.Client, gateway: World, caplog: pytest.LogCaptureFixture
) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {gateway.token}\r\n"
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
            connection.sendall(f"{head}content-length: 100\r\n\r\n{{".encode())
    http.get("/health").raise_for_status()
    http.post(CHAT, json={"model": "m", "messages": [{"role": "user", "content": "hi"}]}).raise_for_status()
    assert [record.message for record in caplog.records] == []
    assert len(gateway.calls()) == 1
