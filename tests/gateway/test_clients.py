"""The vendors' own clients against the gateway."""

from collections.abc import Iterator
from itertools import pairwise

import anthropic
import openai
import pytest

from gyre.contracts.engine import GenerateRequest
from tests.gateway.conftest import World
from tests.gateway.scripted_engine import ScriptedEngine

CALL = 'Let me look.\n<tool_call>\n{"name": "bash",   "arguments": {"command": "ls", "n": 1}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}


def tool_loop(turns: int):
    """Calls a tool on each turn but the last."""

    def script(request: GenerateRequest, prompt: str) -> str:
        answered = prompt.count("<tool_response>")
        return CALL if answered < turns - 1 else "All done."

    return script


@pytest.fixture
def claude(gateway: World) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=gateway.token, max_retries=0) as client:
        yield client


@pytest.fixture
def gpt(gateway: World) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.token, max_retries=0) as client:
        yield client


ANTHROPIC_TOOLS = [{"name": "bash", "description": "run", "input_schema": PARAMETERS}]
OPENAI_TOOLS = [
    {"type": "function", "function": {"name": "bash", "description": "run", "parameters": PARAMETERS}}
]


def anthropic_loop(client: anthropic.Anthropic, turns: int, *, stream: bool) -> list[anthropic.types.Message]:
    messages: list = [{"role": "user", "content": "go"}]
    answers = []
    for _ in range(turns):
        asked = {"model": "m", "max_tokens": 400, "messages": messages, "tools": ANTHROPIC_TOOLS}
        if stream:
            with client.messages.stream(**asked) as events:
                answer = events.get_final_message()
        else:
            answer = client.messages.create(**asked)
        answers.append(answer)
        messages.append({"role": "assistant", "content": [b.model_dump() for b in answer.content]})
        results = [
            {"type": "tool_result", "tool_use_id": b.id, "content": f"ok {len(answers)}"}
            for b in answer.content
            if b.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results or "thanks"})
    return answers


def openai_loop(client: openai.OpenAI, turns: int, *, stream: bool) -> list:
    messages: list = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "go"}]
    answers = []
    for _ in range(turns):
        asked = {"model": "m", "messages": messages, "tools": OPENAI_TOOLS}
        if stream:
            with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
                answer = events.get_final_completion()
        else:
            answer = client.chat.completions.create(**asked)
        answers.append(answer)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls or []:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"ok {len(answers)}"})
        if not message.tool_calls:
            messages.append({"role": "user", "content": "thanks"})
    return answers


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_text_and_tools(claude, gateway: World, engine: ScriptedEngine, stream: bool) -> None:
    engine.script = tool_loop(2)
    first, second = anthropic_loop(claude, 2, stream=stream)
    assert [block.type for block in first.content] == ["text", "tool_use"]
    assert first.content[1].input == {"command": "ls", "n": 1}
    assert first.stop_reason == "tool_use"
    assert second.content[0].text == "All done."
    assert second.stop_reason == "end_turn"
    assert second.usage.input_tokens == len(engine.requests[1].input_ids)
    assert second.usage.output_tokens == gateway.calls()[1].num_output_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_openai_text_and_tools(gpt, gateway: World, engine: ScriptedEngine, stream: bool) -> None:
    engine.script = tool_loop(2)
    first, second = openai_loop(gpt, 2, stream=stream)
    message = first.choices[0].message
    assert message.content == "Let me look."
    assert message.tool_calls[0].function.name == "bash"
    assert first.choices[0].finish_reason == "tool_calls"
    assert second.choices[0].message.content == "All done."
    assert second.choices[0].finish_reason == "stop"
    assert second.usage.prompt_tokens == len(engine.requests[1].input_ids)
    assert second.usage.completion_tokens == gateway.calls()[1].num_output_tokens


@pytest.mark.parametrize("dialect", ["anthropic", "openai"])
def test_a4_thirty_turns_are_one_leaf(
    gpt, claude, gateway: World, engine: ScriptedEngine, dialect: str
) -> None:
    engine.script = tool_loop(30)
    if dialect == "anthropic":
        anthropic_loop(claude, 30, stream=True)
    else:
        openai_loop(gpt, 30, stream=False)
    calls = gateway.calls()
    assert len(calls) == 30
    assert len(gateway.leaves()) == 1
    for before, after in pairwise(calls):
        assert after.num_reused_tokens == before.num_input_tokens + before.num_output_tokens
