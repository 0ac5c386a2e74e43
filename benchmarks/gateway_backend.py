"""The benchmark's engine, which answers at once: ``python -m benchmarks.gateway_backend PORT FILE``.

It is raw asyncio because it runs on the same two cores as the gateway. ``/generate`` speaks the engine
protocol with the sampled ids of FILE. ``/v1/messages`` streams the same answer as Anthropic does, for a proxy
in the gateway's place. Neither reads the prompt.
"""

import asyncio
import json
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEAD_END = b"\r\n\r\n"


class Backend(asyncio.Protocol):
    """One connection with requests that have a Content-Length, one after the other."""

    def __init__(self, answers: dict[bytes, Callable[[], bytes]]) -> None:
        self._answers, self._received, self._needed = answers, bytearray(), 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= self._needed:
            end = self._received.find(HEAD_END)
            if end < 0:
                return
            head = bytes(self._received[:end])
            self._needed = end + len(HEAD_END) + _content_length(head)
            if len(self._received) < self._needed:
                return
            del self._received[: self._needed]
            self._needed = 0
            path = head.split(b" ", 2)[1].partition(b"?")[0]
            self._transport.write(self._answers[path]() if path in self._answers else _json_response(b"{}"))


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _json_response(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def engine_answer(ids: list[int]) -> bytes:
    """Build a GenerateResponse that stops at the last of ``ids``."""
    meta = {
        "id": "-",
        "finish_reason": {"type": "stop", "matched": ids[-1]},
        "prompt_tokens": 0,
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "output_token_logprobs": [[-((7 * i) % 97) / 50, token, None] for i, token in enumerate(ids)],
        "weight_versions": [[0, len(ids)]],
    }
    return _json_response(json.dumps({"output_ids": ids, "meta_info": meta}).encode())


def anthropic_answer(text: str, arguments: dict[str, Any]) -> bytes:
    """Build a Messages stream with new ids: text in deltas of some words, then a tool call."""
    words = text.split(" ")
    pieces = [" ".join(words[i : i + 4]) + " " for i in range(0, len(words), 4)]
    usage = {"input_tokens": 20_000, "output_tokens": 1}
    message = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": "policy"}
    message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    call = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex}", "name": "Tool00", "input": {}}
    ending = {"stop_reason": "tool_use", "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": _delta("text", piece)} for piece in pieces),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": call},
        {"type": "content_block_delta", "index": 1, "delta": _delta("input_json", json.dumps(arguments))},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 100}},
        {"type": "message_stop"},
    ]
    stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + f"{len(stream):x}\r\n".encode() + stream + b"\r\n0\r\n\r\n"


def _delta(kind: str, piece: str) -> dict[str, str]:
    return {"type": f"{kind}_delta", "partial_json" if kind == "input_json" else "text": piece}


async def serve(port: int, answer: dict[str, Any]) -> None:
    """Serve until the process ends. ``answer`` has ids, text and arguments."""
    generated = engine_answer(answer["ids"])
    answers: dict[bytes, Callable[[], bytes]] = {
        b"/generate": lambda: generated,
        b"/v1/messages": lambda: anthropic_answer(answer["text"], answer["arguments"]),
    }
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Backend(answers), "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())))
