"""A wire tap that keeps every byte, and independent readers of each dialect's answers.

Nothing here uses the gateway's code, because the gateway is checked against it.
"""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 16


@dataclass
class TappedConnection:
    """All bytes that a client sent and received."""

    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class Exchange:
    """One request and its response; ``whole``: the response is complete."""

    method: str
    path: str
    headers: dict[str, str]
    request: bytes
    status: int
    response: bytes
    whole: bool

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.request)


@dataclass(frozen=True)
class Heard:
    """An answer as its client reads it. Arguments are the JSON text on the wire."""

    id: str
    reasoning: str
    text: str
    calls: tuple[tuple[str, str], ...]


class WireTap:
    """Relays connections from a Unix socket and a port to the gateway's port, in a thread."""

    def __init__(self, path: Path, gateway_port: int) -> None:
        self.path, self._gateway_port = path, gateway_port
        self.connections: list[TappedConnection] = []
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._tcp.getsockname()[1]}"

    def __enter__(self) -> "WireTap":
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)

    def exchanges(self) -> list[Exchange]:
        """Return every complete request and its response, grouped by connection."""
        return [each for connection in list(self.connections) for each in _exchanges(connection)]

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        unix = await asyncio.start_unix_server(self._pass_on, self.path)
        tcp = await asyncio.start_server(self._pass_on, sock=self._tcp)
        self._ready.set()
        async with unix, tcp:
            await self._stop.wait()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = TappedConnection()
        try:
            gateway = await asyncio.open_connection("127.0.0.1", self._gateway_port)
        except OSError:
            writer.close()
            return
        self.connections.append(kept)
        there = asyncio.create_task(_pump(reader, gateway[1], kept.sent))
        back = asyncio.create_task(_pump(gateway[0], writer, kept.received))
        await asyncio.wait([there, back])


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
    try:
        while piece := await reader.read(CHUNK_BYTES):
            kept += piece
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


def _exchanges(connection: TappedConnection) -> Iterator[Exchange]:
    sent, received = bytes(connection.sent), bytes(connection.received)
    while b"\r\n\r\n" in sent and b"\r\n\r\n" in received:
        line, headers, request, sent, _ = _message(sent)
        method, path, _ = line.split(" ", 2)
        answer, _, response, received, whole = _message(received, no_body=method == "HEAD")
        yield Exchange(method, path, headers, request, int(answer.split(" ")[1]), response, whole)


def _message(data: bytes, *, no_body: bool = False) -> tuple[str, dict[str, str], bytes, bytes, bool]:
    """Return first line, headers, body, the rest of the connection, and whether the message is complete."""
    head, _, rest = data.partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    pairs = (entry.split(":", 1) for entry in fields)
    headers = {name.lower(): value.strip() for name, value in pairs}
    if no_body:
        return line, headers, b"", rest, True
    if headers.get("transfer-encoding") == "chunked":
        return line, headers, *_chunks(rest)
    size = int(headers.get("content-length", 0))
    return line, headers, rest[:size], rest[size:], len(rest) >= size


def _chunks(data: bytes) -> tuple[bytes, bytes, bool]:
    body = b""
    while b"\r\n" in data:
        size_text, _, data = data.partition(b"\r\n")
        size = int(size_text, 16)
        body, data = body + data[:size], data[size + 2 :]
        if size == 0:
            return body, data, True
    return body, b"", False


def heard(dialect: str, exchange: Exchange) -> Heard:
    """Read the answer of an exchange from its bytes."""
    streamed = exchange.response.lstrip().startswith((b"event:", b"data:", b":"))
    readers = {"anthropic": _anthropic, "openai": _openai, "responses": _responses}
    document = _events(exchange.response) if streamed else json.loads(exchange.response)
    return readers[dialect](document)


def _events(body: bytes) -> list[dict[str, Any]]:
    lines = body.decode().split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]"]


def _anthropic(answer: Any) -> Heard:
    if isinstance(answer, list):
        message = next(event["message"] for event in answer if event["type"] == "message_start")
        blocks = [
            _streamed_block(answer, event) for event in answer if event["type"] == "content_block_start"
        ]
    else:
        message, blocks = answer, answer["content"]
    texts = {kind: "".join(b[kind] for b in blocks if b["type"] == kind) for kind in ("thinking", "text")}
    calls = [(b["name"], json.dumps(b["input"])) for b in blocks if b["type"] == "tool_use"]
    return Heard(message["id"], texts["thinking"], texts["text"], tuple(calls))


def _streamed_block(events: list[dict[str, Any]], start: dict[str, Any]) -> dict[str, Any]:
    deltas = [
        e["delta"] for e in events if e["type"] == "content_block_delta" and e["index"] == start["index"]
    ]
    block = dict(start["content_block"])
    for kind in ("thinking", "text"):
        if block["type"] == kind:
            block[kind] += "".join(delta.get(kind, "") for delta in deltas)
    if block["type"] == "tool_use":
        block["input"] = json.loads("".join(delta["partial_json"] for delta in deltas))
    return block


def _openai(answer: Any) -> Heard:
    pieces = answer if isinstance(answer, list) else [answer]
    parts = [choice.get("delta", choice.get("message")) for p in pieces for choice in p["choices"]]
    calls: dict[int, tuple[str, str]] = {}
    for number, call in (
        (c.get("index", i), c) for p in parts for i, c in enumerate(p.get("tool_calls", ()))
    ):
        name, arguments = calls.get(number, ("", ""))
        function = call["function"]
        calls[number] = (name + function.get("name", ""), arguments + function.get("arguments", ""))
    reasoning = "".join(part.get("reasoning_content") or "" for part in parts)
    return Heard(
        pieces[0]["id"], reasoning, "".join(p.get("content") or "" for p in parts), tuple(calls.values())
    )


def _responses(answer: Any) -> Heard:
    if not isinstance(answer, list):
        return _response(answer)
    ended = next(event["response"] for event in answer if event["type"] in ENDS)
    deltas = {kind: "".join(e["delta"] for e in answer if e["type"] == kind) for kind in DELTAS}
    whole = _response(ended)
    # A client may read the deltas, the items or the last event: all must agree.
    done = _response(
        ended | {"output": [e["item"] for e in answer if e["type"] == "response.output_item.done"]}
    )
    assert done == whole
    arguments = "".join(arguments for _, arguments in whole.calls)
    assert tuple(deltas.values()) == (whole.reasoning, whole.text, arguments)
    return whole


ENDS = ("response.completed", "response.incomplete")
DELTAS = (
    "response.reasoning_summary_text.delta",
    "response.output_text.delta",
    "response.function_call_arguments.delta",
)


def _response(response: dict[str, Any]) -> Heard:
    output = response["output"]
    reasoning = "".join(part["text"] for o in output if o["type"] == "reasoning" for part in o["summary"])
    text = "".join(part["text"] for o in output if o["type"] == "message" for part in o["content"])
    calls = [
        ("__".join(filter(None, (o.get("namespace"), o["name"]))), o["arguments"])
        for o in output
        if o["type"] == "function_call"
    ]
    return Heard(response["id"], reasoning, text, tuple(calls))
