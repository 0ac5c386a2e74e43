"""A run with one open attempt, a scripted engine, and the gateway in a thread or in a process."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import uvicorn
from sqlalchemy.orm import Session
from transformers import PreTrainedTokenizerFast

from db import attempts, calls
from db.models import (
    CellRow,
    ExecutionRow,
    ModelCallRow,
    QueryGroupRow,
    RunConfigRow,
    RunRow,
    TaskRow,
    TreeNodeRow,
)
from db.session import Database, transaction
from gateway.__main__ import listening_sockets, running, server
from gateway.app import App
from gyre.contracts.boot import GatewayBoot
from gyre.contracts.ids import AttemptId, ExecutionId
from gyre.contracts.tokens import attempt_token
from tests.gateway.scripted_engine import ScriptedEngine, Serving, engine_app
from tests.gateway.tiny_model import build_tokenizer

SECRET = b"secret of the run"
EXECUTION = ExecutionId("run/r/group/0/rollout/0")
ATTEMPT = AttemptId(f"{EXECUTION}/attempt/1")


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(model_dir)


@pytest.fixture
def engine(tokenizer: PreTrainedTokenizerFast) -> Iterator[ScriptedEngine]:
    scripted = ScriptedEngine(tokenizer)
    with serving_engine(scripted):
        yield scripted


@contextmanager
def serving_engine(scripted: ScriptedEngine) -> Iterator[None]:
    """Serve the engine until the block ends, on a free port that its ``url`` names."""
    listening = socket.create_server(("127.0.0.1", 0))
    scripted.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    host = uvicorn.Server(uvicorn.Config(engine_app(scripted), log_level="warning", lifespan="off"))
    with Serving(host, lambda: asyncio.run(host.serve(sockets=[listening]))):
        yield


@dataclass
class World:
    """One run with an open attempt, and ways to read its rows."""

    database: Database
    dsn: str
    model_dir: Path
    folder: Path
    port: int
    attempt: AttemptId = ATTEMPT
    boot_options: dict[str, Any] = field(default_factory=dict)
    apps: list[App] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return attempt_token(SECRET, self.attempt)

    def boot(self) -> GatewayBoot:
        return GatewayBoot(
            run="r",
            services={"postgres_dsn": self.dsn},
            state_dir=str(self.folder),
            host="here",
            port=self.port,
            socket=str(self.folder / "g.sock"),
            **self.boot_options,
        )

    def read(self, query: Callable[[Session], Any]) -> Any:
        """Return the result of a query in a transaction of its own."""
        with transaction(self.database) as session:
            return query(session)

    def calls(self) -> list[ModelCallRow]:
        return list(self.read(lambda s: calls.calls(s, self.attempt)))

    def nodes(self) -> list[TreeNodeRow]:
        return list(self.read(lambda s: calls.nodes(s, self.attempt)))

    def leaves(self) -> list[TreeNodeRow]:
        """Return the nodes from whose end no other node continues."""
        nodes = self.nodes()
        ends = {(n.parent_id, n.parent_offset) for n in nodes}
        return [n for n in nodes if (n.id, n.num_tokens) not in ends]


@pytest.fixture
def world(
    database: Database, postgres_dsn: str, model_dir: Path, engine: ScriptedEngine, tmp_path: Path
) -> World:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = World(database, postgres_dsn, model_dir, tmp_path, port)
    with transaction(database) as session:
        add_run(session, model_dir, engine.url)
        attempts.open_attempt(session, EXECUTION, 1, "here")
    return made


def add_run(session: Session, model_dir: Path, engine_url: str, harness: str = "tiny", **limits: int) -> None:
    """Add run ``r`` with one cell and one execution without an attempt."""
    resolved = {
        "harness": {"name": harness},
        "model": {"path": str(model_dir), "context_tokens": 200_000},
        "sampling": {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "max_tokens": 500},
        "limits": {"calls": 2000, "concurrent_calls": 16, "body_bytes": 1 << 20} | limits,
    }
    session.add(RunRow(id="r", secret=SECRET))
    session.flush()
    session.add(RunConfigRow(run_id="r", revision=0, resolved=resolved, fingerprint="-"))
    session.add(TaskRow(id="run/r/task/t", run_id="r", name="t", split="train", path="-", sha256="-"))
    session.add(CellRow(id="run/r/cell/0", run_id="r", index=0, capacity=8, engine_url=engine_url))
    session.flush()
    session.add(
        QueryGroupRow(
            id="run/r/group/0", run_id="r", index=0, task_id="run/r/task/t", size=1, policy_version=0
        )
    )
    session.flush()
    session.add(ExecutionRow(id=EXECUTION, group_id="run/r/group/0", run_id="r", index=0))
    session.flush()


@contextmanager
def gateway_thread(world: World) -> Iterator[None]:
    """Run a gateway in this process until the block ends; its application is the last of ``world.apps``."""
    boot = world.boot()
    ready: list[uvicorn.Server] = []

    async def run() -> None:
        async with running(boot) as app:
            world.apps.append(app)
            ready.append(server(app))
            await ready[0].serve(sockets=listening_sockets(boot))

    class LateServer:
        """A server that exists only once the application does."""

        @property
        def started(self) -> bool:
            return bool(ready) and ready[0].started

        @property
        def should_exit(self) -> bool:
            return ready[0].should_exit

        @should_exit.setter
        def should_exit(self, value: bool) -> None:
            ready[0].should_exit = value

    with Serving(LateServer(), lambda: asyncio.run(run())):  # type: ignore[arg-type]
        yield


@contextmanager
def gateway_process(world: World) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``python -m gateway``, and kill it at the end if it still runs."""
    path = world.folder / "gateway.json"
    path.write_text(world.boot().model_dump_json())
    process = subprocess.Popen([sys.executable, "-m", "gateway", "--boot", str(path)], cwd=os.getcwd())
    try:
        wait_until(lambda: _answers(world.url), process)
        yield process
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait up to a minute for a condition that other threads or processes fulfil."""
    deadline = time.monotonic() + 60
    while not condition():
        assert process is None or process.poll() is None, "the process ended"
        assert time.monotonic() < deadline, "waited a minute in vain"
        time.sleep(0.02)


@pytest.fixture
def gateway(world: World) -> Iterator[World]:
    with ExitStack() as stack:
        stack.enter_context(gateway_thread(world))
        yield world


@pytest.fixture
def http(gateway: World) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {gateway.token}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=30) as client:
        yield client


def sse_events(text: str) -> list[dict[str, Any]]:
    """Return the JSON documents of a stream."""
    lines = (line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def lose_every_other_answer(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Commit every other statement but lose its connection before the gateway reads the reply.

    Returns a list that grows with each statement: "lost" or "heard".
    """
    execute, heard = psycopg.AsyncConnection.execute, list[str]()

    async def execute_and_lose(
        connection: psycopg.AsyncConnection[Any], *args: Any, **options: Any
    ) -> psycopg.AsyncCursor[Any]:
        cursor = await execute(connection, *args, **options)
        heard.append("heard" if len(heard) % 2 else "lost")
        if heard[-1] == "lost":
            raise psycopg.OperationalError("the connection was lost")
        return cursor

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", execute_and_lose)
    return heard
