"""Attempt directories, a gateway made of the standard library, and an S3 server."""

import json
import os
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import httpx
import pytest

from app.stack.installed_programs import program
from db.object_store import s3_client
from db.session import Database
from gyre.settings import Services
from sandbox import isolation
from sandbox.harness_process import HarnessSpec, HarnessStatus, Limits, kill, poll, start_or_attach

ISOLATED = isolation.probe() != isolation.PLAIN
needs_bwrap = pytest.mark.skipif(not ISOLATED, reason="bubblewrap does not work on this machine")
WAIT_S = 40.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def wait_exited(directory: Path) -> HarnessStatus:
    wait_until(lambda: poll(directory).state == "exited")
    return poll(directory)


class Attempts:
    """Attempts below one folder; the fixture kills those that are left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directories: list[Path] = []

    def spec(
        self, *argv: str, limit_s: float = 30, limits: Limits | None = None, gateway: str | None = None,
        env: dict[str, str] | None = None, kind: str | None = None,
    ) -> HarnessSpec:  # fmt: skip
        directory = self.folder / f"attempt-{uuid.uuid4().hex[:8]}"
        for name in ("workspace", "home"):
            (directory / name).mkdir(parents=True)
        self.directories.append(directory)
        kind = kind or isolation.probe()
        cwd = str(directory / "workspace") if kind == isolation.PLAIN else isolation.WORKSPACE
        return HarnessSpec(
            directory=directory,
            argv=list(argv),
            env={"PATH": "/usr/bin:/bin", **(env or {})},
            cwd=cwd,
            time_limit_s=limit_s,
            limits=limits or Limits(),
            gateway_socket=gateway,
            writable=[
                [str(directory / "workspace"), isolation.WORKSPACE],
                [str(directory / "home"), isolation.HOME],
            ],
            isolation=kind,
        )

    def run(self, script: str, **options: object) -> tuple[HarnessStatus, str]:
        """Run a shell script to its end and return its status and output."""
        spec = self.spec("/bin/sh", "-c", script, **options)  # pyright: ignore[reportArgumentType]
        start_or_attach(spec)
        status = wait_exited(spec.directory)
        return status, (spec.directory / "output.log").read_text()


@pytest.fixture
def attempts(tmp_path: Path) -> Iterator[Attempts]:
    made = Attempts(tmp_path)
    yield made
    for directory in made.directories:
        kill(directory)


class Gateway:
    """A server on a Unix socket that answers ``POST /v1/chat/completions`` with scripted messages in turn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.script: list[dict] = []
        self.requests: list[dict] = []
        self.keys: list[str] = []
        self.refusals: list[int] = []
        self.agents: list[str | None] = []
        """Sub-agent header of each request."""
        self._server: ThreadingUnixStreamServer | None = None

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._server = ThreadingUnixStreamServer(str(self.path), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Stop serving; the socket file stays, as it does after kill -9."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def answer(self, body: dict) -> tuple[int, dict]:
        if self.refusals:
            return self.refusals.pop(0), {"error": {"message": "busy"}}
        self.requests.append(body)
        return 200, {"choices": [{"message": self.script[len(self.requests) - 1]}]}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def address_string(self) -> str:
                return "sandbox"

            def log_message(self, *_: object) -> None:
                """Print nothing."""

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                gateway.keys.append(self.headers["Authorization"])
                gateway.agents.append(self.headers["x-tiny-agent"])
                status, document = gateway.answer(body)
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler


def says(text: str) -> dict:
    return {"role": "assistant", "content": text}


def calls_shell(command: str, number: int = 1) -> dict:
    return calls("shell", {"command": command}, number)


def calls(name: str, arguments: dict, number: int = 1) -> dict:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    made = Gateway(tmp_path / "gateway.sock")
    made.start()
    yield made
    made.stop()


def make_task(
    folder: Path, *, instruction: str = "do it", test: str = "echo 1 > /logs/verifier/reward.txt"
) -> Path:
    """Create a task folder in Harbor's format."""
    (folder / "environment").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "instruction.md").write_text(instruction)
    (folder / "task.toml").write_text('version = "1.0"\n')
    (folder / "environment" / "README").write_text("start here\n")
    (folder / "tests" / "test.sh").write_text(test)
    return folder


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of an S3 server that accepts the key ``test`` / ``testsecret``."""
    folder = tmp_path_factory.mktemp("s3")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        program("rclone"),
        "serve",
        "s3",
        "--auth-key",
        "test,testsecret",
        "--addr",
        f"127.0.0.1:{port}",
    ]
    env = os.environ | {"RCLONE_CONFIG": str(folder / "none")}
    server = subprocess.Popen([*command, str(folder)], stderr=subprocess.DEVNULL, env=env)
    wait_until(lambda: _answers(port))
    yield f"http://127.0.0.1:{port}"
    server.terminate()
    server.wait(20)


def _answers(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}", timeout=2)
    except httpx.HTTPError:
        return False
    return True


@pytest.fixture
def services(s3_server: str, postgres_dsn: str, database: Database) -> Services:
    given = Services(
        temporal_address="127.0.0.1:1",
        postgres_dsn=postgres_dsn,
        s3_endpoint=s3_server,
        s3_bucket=f"b{uuid.uuid4().hex[:12]}",
        s3_access_key="test",
        s3_secret_key="testsecret",
    )
    s3_client(given).create_bucket(Bucket=given.s3_bucket)
    return given
