"""Golden streams: the gateway writes them byte for byte, and the vendors' clients read those same bytes."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import types

from tests.gateway.scripted_engine import Part, ScriptedEngine
from tests.gateway.wire import DIALECTS, request_in

GOLDEN = Path(__file__).parent / "golden"
LOOK = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls -l \\"a b\\"", "n": 1}}\n</tool_call>'
ANSWERS = {
    "text": Part('Zwölf Äpfel,\n \U0001f34e and a \\ "quote".'),
    "thinking": Part("<think>\nTwelve, I think.\n</think>\n\nTwelve."),
    "tool_use": Part(f"Let me look.\n{LOOK}\n{LOOK}"),
    "length": Part("and so on and so", finish="length"),
}
GENERATED_ID = re.compile(rb"(?<=[_-])[0-9a-f]{24}\b|(?<=\"responseId\":\")[0-9a-f]{24}")
CREATED = re.compile(rb'"created(_at)?":\d+')


def normalized(stream: bytes) -> bytes:
    """Number ids in order of appearance and zero times: equal ids stay equal, different ones different."""
    seen: dict[bytes, bytes] = {}
    numbered = GENERATED_ID.sub(lambda found: seen.setdefault(found[0], b"ID%d" % len(seen)), stream)
    return CREATED.sub(rb'"created\1":0', numbered)


def request_for(dialect: str) -> tuple[str, dict[str, Any]]:
    """Return path and body of the request that each golden stream answers."""
    path, body = request_in(dialect, "hi", max_tokens=400, stream=True)
    return path, body | ({"stream_options": {"include_usage": True}} if dialect == "openai" else {})


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_equals_its_golden_one(
    http: httpx.Client, engine: ScriptedEngine, dialect: str, kind: str
) -> None:
    """Proxies corrupted streams between Claude Code and the engine, and counted tokens wrong."""
    engine.script = lambda request, prompt: ANSWERS[kind]
    path, body = request_for(dialect)
    answer = http.post(path, json=body)
    assert answer.headers["content-type"] == "text/event-stream"
    assert normalized(answer.content) == (GOLDEN / f"{dialect}_{kind}.sse").read_bytes()


def test_a_google_array_has_the_elements_of_its_event_stream(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    for part in ANSWERS.values():
        engine.script = lambda request, prompt, part=part: part
        path, body = request_for("google")
        events, array = http.post(path, json=body), http.post(path.removesuffix("?alt=sse"), json=body)
        assert array.headers["content-type"] == "application/json"
        lines = normalized(events.content).decode().splitlines()
        elements = [json.loads(line.removeprefix("data: ")) for line in lines if line]
        assert json.loads(normalized(array.content)) == elements


@contextmanager
def replaying(name: str) -> Iterator[str]:
    """Start a server that answers everything with one golden stream; yield its URL."""

    class Replay(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write((GOLDEN / name).read_bytes())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Replay) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


HI: list[Any] = [{"role": "user", "content": "hi"}]
ARGUMENTS = {"command": 'ls -l "a b"', "n": 1}


def test_anthropics_client_reads_the_golden_streams() -> None:
    def read(kind: str) -> anthropic.types.Message:
        with (
            replaying(f"anthropic_{kind}.sse") as url,
            anthropic.Anthropic(api_key="k", base_url=url, max_retries=0) as client,
            client.messages.stream(model="m", max_tokens=400, messages=HI) as stream,
        ):
            return stream.get_final_message()

    blocks = {kind: [block.to_dict() for block in read(kind).content] for kind in ANSWERS}
    assert blocks["text"] == [{"type": "text", "text": ANSWERS["text"].text}]
    assert [block["type"] for block in blocks["thinking"]] == ["thinking", "text"]
    assert blocks["thinking"][0]["thinking"] == "Twelve, I think."
    assert [block.get("input") for block in blocks["tool_use"]] == [None, ARGUMENTS, ARGUMENTS]
    reasons = [read(kind).stop_reason for kind in ANSWERS]
    assert reasons == ["end_turn", "end_turn", "tool_use", "max_tokens"]


def test_openais_client_reads_the_golden_streams() -> None:
    def read(kind: str) -> Any:
        with (
            replaying(f"openai_{kind}.sse") as url,
            openai.OpenAI(api_key="k", base_url=url, max_retries=0) as client,
            client.chat.completions.stream(model="m", messages=HI) as stream,
        ):
            return stream.get_final_completion().choices[0]

    assert read("text").message.content == ANSWERS["text"].text
    assert read("thinking").message.reasoning_content == "Twelve, I think."
    calls = [json.loads(call.function.arguments) for call in read("tool_use").message.tool_calls]
    assert calls == [ARGUMENTS, ARGUMENTS]
    assert [read(kind).finish_reason for kind in ("text", "thinking", "tool_use")] == [
        "stop",
        "stop",
        "tool_calls",
    ]


def test_openais_client_reads_the_golden_responses() -> None:
    def read(kind: str) -> Any:
        with (
            replaying(f"responses_{kind}.sse") as url,
            openai.OpenAI(api_key="k", base_url=url, max_retries=0) as client,
            client.responses.stream(model="m", input="hi") as stream,
        ):
            *events, last = stream
        assert [event.sequence_number for event in [*events, last]] == list(range(len(events) + 1))
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert [item.id for item in done] == [item.id for item in last.response.output]
        return last.response

    assert read("text").output_text == ANSWERS["text"].text
    reasoning, message = read("thinking").output
    assert (reasoning.summary[0].text, message.content[0].text) == ("Twelve, I think.", "Twelve.")
    _, *calls = read("tool_use").output
    assert [json.loads(call.arguments) for call in calls] == [ARGUMENTS, ARGUMENTS]
    length = read("length")
    assert (length.status, length.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_googles_client_reads_the_golden_streams() -> None:
    def read(kind: str) -> list[Any]:
        options = types.HttpOptions(base_url="-")
        with replaying(f"google_{kind}.sse") as options.base_url:
            client = genai.Client(api_key="k", http_options=options)
            chunks = list(client.models.generate_content_stream(model="m", contents="hi"))
            client.close()
        assert [bool(chunk.candidates[0].finish_reason) for chunk in chunks].count(True) == 1
        parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
        return [*parts, chunks[-1].candidates[0].finish_reason.value]

    text, _, reason = read("text")
    assert (text.text, reason) == (ANSWERS["text"].text, "STOP")
    thought, text, *_ = read("thinking")
    assert (thought.thought, thought.text, text.text) == (True, "Twelve, I think.", "Twelve.")
    _, *calls, reason = read("tool_use")
    assert ([call.function_call.args for call in calls], reason) == ([ARGUMENTS, ARGUMENTS], "STOP")
    assert read("length")[-1] == "MAX_TOKENS"
