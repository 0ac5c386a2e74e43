"""The vendors' own clients against the gateway: text, thinking, tools, counts, models and errors."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from gyre.contracts.engine import GenerateRequest
from gyre.contracts.tokens import attempt_token
from tests.gateway.conftest import World, gateway_thread
from tests.gateway.scripted_engine import Part, ScriptedEngine
from tests.gateway.test_calls import limited

CALL = (
    "<think>\nI must look.\n</think>\n\nLet me look."
    '\n<tool_call>\n{"name": "bash",   "arguments": {"command": "ls", "n": 1}}\n</tool_call>'
)
ARGUMENTS = {"command": "ls", "n": 1}
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}, "n": {"type": "integer"}}}


def tool_loop(turns: int):
    """Script a tool call on each turn but the last."""

    def script(request: GenerateRequest, prompt: str) -> str:
        answered = prompt.count("<tool_response>")
        return CALL if answered < turns - 1 else "All done."

    return script


@dataclass(frozen=True)
class ClientAnswer:
    """One answer as a client read it."""

    text: str
    reasoning: str
    calls: list[tuple[str, dict[str, Any]]]
    reason: str
    usage: tuple[int, int]
    """Input and output tokens."""


@dataclass
class Claude:
    client: anthropic.Anthropic
    messages: list[Any] = field(default_factory=list)
    ends: ClassVar = {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens"}
    tools = ({"name": "bash", "description": "run", "input_schema": PARAMETERS},)

    def ask(self, text: str, *, stream: bool = False, max_tokens: int = 400) -> ClientAnswer:
        self.messages.append({"role": "user", "content": text})
        return self._send(stream, max_tokens)

    def answer(self, text: str, *, stream: bool = False) -> ClientAnswer:
        calls = [block for block in self.messages[-1]["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": text} for call in calls]
        self.messages.append({"role": "user", "content": results})
        return self._send(stream, 400)

    def count(self, text: str) -> int:
        messages: Any = [{"role": "user", "content": text}]
        return self.client.messages.count_tokens(
            model="m", messages=messages, tools=list(self.tools)
        ).input_tokens

    def _send(self, stream: bool, max_tokens: int) -> ClientAnswer:
        request: Any = {"model": "m", "messages": self.messages, "tools": list(self.tools)}
        if stream:
            with self.client.messages.stream(**request, max_tokens=max_tokens) as events:
                message = events.get_final_message()
        else:
            message = self.client.messages.create(**request, max_tokens=max_tokens)
        blocks = [block.model_dump(exclude_none=True) for block in message.content]
        self.messages.append({"role": "assistant", "content": blocks})
        return ClientAnswer(
            "".join(block.get("text", "") for block in blocks),
            "".join(block.get("thinking", "") for block in blocks),
            [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
            message.stop_reason or "",
            (message.usage.input_tokens, message.usage.output_tokens),
        )


@dataclass
class Chat:
    client: openai.OpenAI
    messages: list[Any] = field(default_factory=list)
    ends: ClassVar = {"stop": "stop", "calls": "tool_calls", "length": "length"}
    tools = (
        {"type": "function", "function": {"name": "bash", "description": "run", "parameters": PARAMETERS}},
    )

    def ask(self, text: str, *, stream: bool = False, max_tokens: int = 400) -> ClientAnswer:
        self.messages.append({"role": "user", "content": text})
        return self._send(stream, max_tokens)

    def answer(self, text: str, *, stream: bool = False) -> ClientAnswer:
        for call in self.messages[-1]["tool_calls"]:
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        return self._send(stream, 400)

    def _send(self, stream: bool, max_tokens: int) -> ClientAnswer:
        request: Any = {"model": "m", "messages": self.messages, "tools": list(self.tools)}
        request["max_completion_tokens"] = max_tokens
        if stream:
            options: Any = {"stream_options": {"include_usage": True}}
            with self.client.chat.completions.stream(**request, **options) as events:
                for _ in events:
                    """The client checks `finish_reason` only at the end of the loop."""
                completion = events.current_completion_snapshot
        else:
            completion = self.client.chat.completions.create(**request)
        choice = completion.choices[0]
        message = choice.message.model_dump(exclude_none=True, exclude={"parsed"})
        self.messages.append(message)
        calls = [call["function"] for call in message.get("tool_calls", [])]
        usage = completion.usage
        assert usage
        return ClientAnswer(
            message.get("content") or "",
            message.get("reasoning_content", ""),
            [(call["name"], json.loads(call["arguments"])) for call in calls],
            choice.finish_reason,
            (usage.prompt_tokens, usage.completion_tokens),
        )


@dataclass
class Responses:
    client: openai.OpenAI
    items: list[Any] = field(default_factory=list)
    ends: ClassVar = {"stop": "completed", "calls": "completed", "length": "incomplete"}
    tools = (
        {"type": "function", "name": "bash", "description": "run", "parameters": PARAMETERS, "strict": False},
    )

    def ask(self, text: str, *, stream: bool = False, max_tokens: int = 400) -> ClientAnswer:
        self.items.append({"role": "user", "content": text})
        return self._send(stream, max_tokens)

    def answer(self, text: str, *, stream: bool = False) -> ClientAnswer:
        calls = [item for item in self.items if item.get("type") == "function_call"]
        answered = {item["call_id"] for item in self.items if item.get("type") == "function_call_output"}
        for call in calls:
            if call["call_id"] not in answered:
                output = {"type": "function_call_output", "call_id": call["call_id"], "output": text}
                self.items.append(output)
        return self._send(stream, 400)

    def count(self, text: str) -> int:
        tools: Any = list(self.tools)
        return self.client.responses.input_tokens.count(model="m", input=text, tools=tools).input_tokens

    def _send(self, stream: bool, max_tokens: int) -> ClientAnswer:
        request: Any = {"model": "m", "input": self.items, "tools": list(self.tools), "store": False}
        request["max_output_tokens"] = max_tokens
        if stream:
            with self.client.responses.create(**request, stream=True) as events:
                *_, last = events
            response = last.response
        else:
            response = self.client.responses.create(**request)
        output = [item.model_dump(exclude_none=True) for item in response.output]
        self.items += output
        return ClientAnswer(
            response.output_text,
            "".join(part["text"] for item in output for part in item.get("summary", [])),
            [(i["name"], json.loads(i["arguments"])) for i in output if i["type"] == "function_call"],
            response.status,
            (response.usage.input_tokens, response.usage.output_tokens),
        )


@dataclass
class Gemini:
    client: genai.Client
    contents: list[Any] = field(default_factory=list)
    ends: ClassVar = {"stop": "STOP", "calls": "STOP", "length": "MAX_TOKENS"}
    tools = (
        {
            "function_declarations": [
                {"name": "bash", "description": "run", "parameters_json_schema": PARAMETERS}
            ]
        },
    )

    def ask(self, text: str, *, stream: bool = False, max_tokens: int = 400) -> ClientAnswer:
        self.contents.append(types.Content(role="user", parts=[types.Part(text=text)]))
        return self._send(stream, max_tokens)

    def answer(self, text: str, *, stream: bool = False) -> ClientAnswer:
        last = self.contents[-1]
        calls = [part.function_call for part in last.parts if part.function_call]
        responses = [types.FunctionResponse(id=c.id, name=c.name, response={"output": text}) for c in calls]
        parts = [types.Part(function_response=response) for response in responses]
        self.contents.append(types.Content(role="user", parts=parts))
        return self._send(stream, 400)

    def count(self, text: str) -> int:
        return self.client.models.count_tokens(model="m", contents=text).total_tokens or 0

    def _send(self, stream: bool, max_tokens: int) -> ClientAnswer:
        config: Any = {"max_output_tokens": max_tokens, "tools": list(self.tools)}
        config["automatic_function_calling"] = {"disable": True}
        request: Any = {"model": "m", "contents": self.contents, "config": config}
        if stream:
            chunks = list(self.client.models.generate_content_stream(**request))
        else:
            chunks = [self.client.models.generate_content(**request)]
        # A client keeps each chunk as a separate turn.
        contents = [chunk.candidates[0].content for chunk in chunks]
        self.contents += contents
        parts = [part for content in contents for part in content.parts]
        usage, calls = chunks[-1].usage_metadata, [p.function_call for p in parts if p.function_call]
        return ClientAnswer(
            "".join(part.text for part in parts if part.text and not part.thought),
            "".join(part.text for part in parts if part.thought),
            [(call.name, call.args) for call in calls],
            chunks[-1].candidates[0].finish_reason.value,
            (usage.prompt_token_count, usage.candidates_token_count),
        )


DIALECTS = ("anthropic", "openai", "responses", "google")


@contextmanager
def talking(dialect: str, url: str, token: str) -> Iterator[Any]:
    """Open a conversation in one dialect; close its client at the end."""
    with ExitStack() as stack:
        match dialect:
            case "anthropic":
                claude = anthropic.Anthropic(base_url=url, api_key=token, max_retries=0)
                yield Claude(stack.enter_context(claude))
            case "google":
                client = genai.Client(api_key=token, http_options=types.HttpOptions(base_url=url))
                stack.callback(client.close)
                yield Gemini(client)
            case _:
                gpt = openai.OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0)
                yield {"openai": Chat, "responses": Responses}[dialect](stack.enter_context(gpt))


@pytest.fixture(params=DIALECTS)
def talk(request: pytest.FixtureRequest, gateway: World) -> Iterator[Any]:
    with talking(request.param, gateway.url, gateway.token) as made:
        yield made


@pytest.mark.parametrize("stream", [False, True])
def test_text_thinking_and_tools(talk: Any, gateway: World, engine: ScriptedEngine, stream: bool) -> None:
    engine.script = tool_loop(2)
    first, second = talk.ask("go", stream=stream), talk.answer("a.txt", stream=stream)
    calls = gateway.calls()
    assert first.text == "Let me look."
    assert first.reasoning == "I must look."
    assert first.calls == [("bash", ARGUMENTS)]
    assert first.reason == talk.ends["calls"]
    assert (second.text, second.reasoning, second.calls) == ("All done.", "", [])
    assert second.reason == talk.ends["stop"]
    assert second.usage == (len(engine.requests[1].input_ids), calls[1].num_output_tokens)
    assert "<tool_response>\na.txt\n</tool_response>" in engine.tokenizer.decode(engine.requests[1].input_ids)
    assert calls[1].num_reused_tokens == calls[0].num_input_tokens + calls[0].num_output_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_truncated_answers_are_marked(talk: Any, engine: ScriptedEngine, stream: bool) -> None:
    engine.script = lambda request, prompt: Part("and so on", finish="length")
    answer = talk.ask("go", stream=stream)
    assert (answer.text, answer.reason) == ("and so on", talk.ends["length"])


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_answer_can_be_sent_back(
    talk: Any, gateway: World, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script = lambda request, prompt: ""
    assert talk.ask("go", stream=stream).text == ""
    talk.ask("say something", stream=stream)
    assert len(gateway.leaves()) == 1


def test_thirty_turns_are_one_leaf(talk: Any, gateway: World, engine: ScriptedEngine) -> None:
    """Where a harness left out reasoning, one tool loop became many samples elsewhere."""
    engine.script = tool_loop(30)
    talk.ask("go", stream=True)
    for turn in range(29):
        talk.answer(f"ok {turn}", stream=bool(turn % 2))
    calls = gateway.calls()
    assert len(calls) == 30
    assert len(gateway.leaves()) == 1
    for before, after in pairwise(calls):
        assert after.num_reused_tokens == before.num_input_tokens + before.num_output_tokens


@pytest.mark.parametrize("dialect", ["anthropic", "responses", "google"])
def test_counting_tokens_makes_no_node(gateway: World, engine: ScriptedEngine, dialect: str) -> None:
    """Counting must be served, and a count must not end up in the training data."""
    with talking(dialect, gateway.url, gateway.token) as talk:
        if dialect == "google":
            talk.tools = ()  # Its client sends no tools along with a count.
        counted = talk.count("how long?")
        assert gateway.calls() == gateway.nodes() == []
        talk.ask("how long?")
    assert counted == len(engine.requests[0].input_ids)


def test_models_are_listed_and_looked_up(gateway: World) -> None:
    name = gateway.model_dir.name
    with talking("openai", gateway.url, gateway.token) as talk:
        assert [model.id for model in talk.client.models.list()] == [name]
        assert talk.client.models.retrieve("any/name").id == "any/name"
    with talking("anthropic", gateway.url, gateway.token) as talk:
        assert [model.id for model in talk.client.models.list()] == [name]
        assert talk.client.models.retrieve("any").display_name == "any"
    with talking("google", gateway.url, gateway.token) as talk:
        assert [model.name for model in talk.client.models.list()] == [f"models/{name}"]
        assert talk.client.models.get(model="any").input_token_limit == 200_000


REFUSALS = (anthropic.APIStatusError, openai.APIStatusError, genai.errors.APIError)


def refused(talk: Any, text: str = "go", *, stream: bool = False) -> tuple[int, str]:
    """Return status and sentence of a refusal, as the client read it."""
    with pytest.raises(REFUSALS) as caught:
        talk.ask(text, stream=stream)
    error: Any = caught.value
    return (error.code if isinstance(error, genai.errors.APIError) else error.status_code), str(error)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_clients_read_refusals(world: World, engine: ScriptedEngine, dialect: str, stream: bool) -> None:
    limited(
        world, limits={"calls": 1, "concurrent_calls": 9, "body_bytes": 4000}, model={"context_tokens": 999}
    )
    with gateway_thread(world):
        with talking(dialect, world.url, attempt_token(b"other", world.attempt)) as stranger:
            assert refused(stranger, stream=stream)[0] == 401
        with talking(dialect, world.url, world.token) as talk:
            status, sentence = refused(talk, "x" * 5000, stream=stream)
            assert (status, "more than 4000 bytes" in sentence) == (413, True)
        with talking(dialect, world.url, world.token) as talk:
            status, sentence = refused(talk, "x" * 1500, stream=stream)
            assert (status, "prompt is too long" in sentence) == (400, True)
        with talking(dialect, world.url, world.token) as talk:
            talk.ask("go", stream=stream)
            status, sentence = refused(talk, stream=stream)
            assert (status, "used its 1 model calls" in sentence) == (429, True)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_failures_in_a_stream_reach_the_client(world: World, engine: ScriptedEngine, dialect: str) -> None:
    """Pings before a failure do not hide it."""
    world.boot_options = {"hold_s": 0.3, "ping_s": 0.05}
    engine.script = lambda request, prompt: Part(status=503)
    with gateway_thread(world), talking(dialect, world.url, world.token) as talk:
        if dialect == "responses":
            request: Any = {"model": "m", "input": "go", "stream": True}
            *_, last = talk.client.responses.create(**request)
            assert last.type == "response.failed"
            assert "no engine answered" in last.response.error.message
        else:
            errors = (anthropic.APIError, openai.APIError, genai.errors.ServerError)
            with pytest.raises(errors, match="no engine answered"):
                talk.ask("go", stream=True)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_clients_tolerate_pings(world: World, engine: ScriptedEngine, dialect: str) -> None:
    """An answer may take many ping intervals."""
    world.boot_options = {"ping_s": 0.02}
    engine.script = lambda request, prompt: Part(status=503) if len(engine.requests) < 4 else CALL
    with gateway_thread(world), talking(dialect, world.url, world.token) as talk:
        answer = talk.ask("go", stream=True)
    assert (answer.text, answer.reasoning, answer.calls) == (
        "Let me look.",
        "I must look.",
        [("bash", ARGUMENTS)],
    )
