"""Streams byte for byte as they are known to be right, and the vendors' clients reading those very bytes."""

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

from tests.gateway.scripted_engine import Part, ScriptedEngine
from tests.gateway.test_calls import CHAT, MESSAGES, chat

GOLDEN = Path(__file__).parent / "golden"
PATHS = {"anthropic": MESSAGES, "openai": CHAT}
LOOK = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls -l \\"a b\\"", "n": 1}}\n</tool_call>'
SAID = {
    "text": Part('Zwölf Äpfel,\n \U0001f34e and a \\ "quote".'),
    "thinking": Part("<think>\nTwelve, I think.\n</think>\n\nTwelve."),
    "tool_use": Part(f"Let me look.\n{LOOK}\n{LOOK}"),
    "length": Part("and so on and so", finish="length"),
}
VOLATILE = (
    (rb"\b(msg|chatcmpl|toolu|call)([_-])[0-9a-f]{24}\b", rb"\1\2ID"),
    (rb'"created":\d+', rb'"created":0'),
)


def normalised(stream: bytes) -> bytes:
    """Ids and times replaced; equal ids stay equal in number and place."""
    for pattern, text in VOLATILE:
        stream = re.sub(pattern, text, stream)
    return stream


@pytest.mark.parametrize("kind", SAID)
@pytest.mark.parametrize("dialect", PATHS)
def test_a14_golden_stream(http: httpx.Client, engine: ScriptedEngine, dialect: str, kind: str) -> None:
    engine.script = lambda request, prompt: SAID[kind]
    options = {"stream_options": {"include_usage": True}} if dialect == "openai" else {}
    answer = http.post(PATHS[dialect], json=chat("hi", max_tokens=400, stream=True, **options))
    assert answer.headers["content-type"] == "text/event-stream"
    assert normalised(answer.content) == (GOLDEN / f"{dialect}_{kind}.sse").read_bytes()


@contextmanager
def replaying(name: str) -> Iterator[str]:
    """URL of a server that answers everything with one golden stream."""

    class Replay(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write((GOLDEN / name).read_bytes())

        def log_message(self, *_: object) -> None:
            """Quiet."""

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

    said = {kind: [block.to_dict() for block in read(kind).content] for kind in SAID}
    assert said["text"] == [{"type": "text", "text": SAID["text"].text}]
    assert [block["type"] for block in said["thinking"]] == ["thinking", "text"]
    assert said["thinking"][0]["thinking"] == "Twelve, I think."
    assert [block.get("input") for block in said["tool_use"]] == [None, ARGUMENTS, ARGUMENTS]
    reasons = [read(kind).stop_reason for kind in SAID]
    assert reasons == ["end_turn", "end_turn", "tool_use", "max_tokens"]


def test_openais_client_reads_the_golden_streams() -> None:
    def read(kind: str) -> Any:
        with (
            replaying(f"openai_{kind}.sse") as url,
            openai.OpenAI(api_key="k", base_url=url, max_retries=0) as client,
            client.chat.completions.stream(model="m", messages=HI) as stream,
        ):
            return stream.get_final_completion().choices[0]

    assert read("text").message.content == SAID["text"].text
    assert read("thinking").message.reasoning_content == "Twelve, I think."
    calls = [json.loads(call.function.arguments) for call in read("tool_use").message.tool_calls]
    assert calls == [ARGUMENTS, ARGUMENTS]
    assert [read(kind).finish_reason for kind in ("text", "thinking", "tool_use")] == [
        "stop",
        "stop",
        "tool_calls",
    ]
