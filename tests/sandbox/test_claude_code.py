"""Real Claude Code in a sandbox: it finds the gateway, uses its tool and leaves its work."""

import json
from pathlib import Path

from gyre.sandbox import adapters
from gyre.sandbox.attempts import kill, start_or_attach
from tests.sandbox.conftest import Gateway, needs_bwrap, wait_exited
from tests.sandbox.test_adapters import launch

pytestmark = needs_bwrap


class Anthropic(Gateway):
    """Answers ``POST /v1/messages`` with one Bash call, then with text, as event streams."""

    def _handler(self):
        gateway = self

        class Handler(super()._handler()):
            def do_HEAD(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                gateway.requests.append(body)
                gateway.keys.append(self.headers["x-api-key"])
                data = b"".join(_events(body))
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler


def _events(body: dict) -> list[bytes]:
    answered = any("tool_result" in json.dumps(message["content"]) for message in body["messages"])
    usage = {"input_tokens": 10, "output_tokens": 5}
    if answered:
        block, delta, stop = {"type": "text", "text": ""}, {"type": "text_delta", "text": "done"}, "end_turn"
    else:
        block = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}
        command = json.dumps({"command": "echo hello > out; id -u", "description": "write"})
        delta, stop = {"type": "input_json_delta", "partial_json": command}, "tool_use"
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "policy", "content": [],
               "stop_reason": None, "stop_sequence": None, "usage": usage}  # fmt: skip
    return [
        _event("message_start", message=message),
        _event("content_block_start", index=0, content_block=block),
        _event("content_block_delta", index=0, delta=delta),
        _event("content_block_stop", index=0),
        _event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=usage),
        _event("message_stop"),
    ]


def _event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def test_claude_code_works_in_the_sandbox(claude_code: Path, tmp_path: Path) -> None:
    gateway = Anthropic(tmp_path / "gateway.sock")
    gateway.start()
    adapter = adapters.load_adapter("claude-code")
    spec = adapters.render(
        adapter,
        {"binary": str(claude_code)},
        launch(tmp_path / "a", str(gateway.path), instruction="write hello", time_limit_s=60.0),
    )
    start_or_attach(spec)
    status = wait_exited(spec.directory)
    gateway.stop()
    output = (spec.directory / "output.log").read_text()
    assert status.exit_code == 0, output
    assert (spec.directory / "workspace" / "out").read_text() == "hello\n"
    assert set(gateway.keys) == {"gy-token"}
    assert [tool["name"] for tool in gateway.requests[0]["tools"]] == ["Bash"]
    # The options keep the first request far below the 79 KB of the defaults.
    assert len(json.dumps(gateway.requests[0])) < 20_000
    kill(spec.directory)
