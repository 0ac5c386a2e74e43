"""A real harness as its catalogue file describes it, with a wire tap, the gateway and a scripted engine."""

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from db import attempts
from db.models import ModelCallRow, TreeNodeRow
from db.session import Database, transaction
from sandbox import adapters, isolation
from sandbox.harness_process import HarnessStatus, Limits, kill, poll, start_or_attach
from tests.gateway.conftest import EXECUTION, World, add_run, engine, gateway_thread, model_dir, tokenizer
from tests.gateway.scripted_engine import ScriptedEngine
from tests.harnesses.programs import installed
from tests.harnesses.wire import Exchange, WireTap

__all__ = ["engine", "model_dir", "tokenizer"]

WAIT_S = 200


@dataclass
class HarnessAttempt:
    """One attempt of one harness, from its sandbox to the rows of the database."""

    name: str
    world: World
    engine: ScriptedEngine
    tap: WireTap
    directory: Path
    tapped: bool = True
    """Whether the harness reaches the gateway through the wire tap."""

    @property
    def adapter(self) -> adapters.Adapter:
        return adapters.load_adapter(self.name)

    @property
    def workspace(self) -> Path:
        return self.directory / "workspace"

    @property
    def workspace_inside(self) -> str:
        """Path of the workspace as the harness sees it."""
        return str(self.workspace) if isolation.probe() == isolation.PLAIN else isolation.WORKSPACE

    @property
    def output(self) -> str:
        return (self.directory / "output.log").read_text()

    def start(self, instruction: str, **options: str) -> None:
        """Start the harness in its sandbox, as a run would."""
        program = installed(self.name)
        self.workspace.mkdir(parents=True)
        launch = adapters.Launch(
            directory=self.directory,
            instruction=instruction,
            token=self.world.token,
            gateway_socket=str(self.tap.path) if self.tapped else self.world.boot().socket,
            gateway_url=self.tap.url if self.tapped else self.world.url,
            time_limit_s=WAIT_S,
            limits=Limits(),
            context_tokens=200_000,
            max_tokens=500,
        )
        settings = options | ({"binary": str(program)} if program else {})
        start_or_attach(adapters.render(self.adapter, settings, launch))

    def wait(self) -> HarnessStatus:
        """Wait until the harness has exited; return how."""
        deadline = time.monotonic() + WAIT_S
        while (status := poll(self.directory)).state != "exited":
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)
        return status

    def run(self, instruction: str, **options: str) -> HarnessStatus:
        self.start(instruction, **options)
        return self.wait()

    def calls(self, *roles: str) -> list[ModelCallRow]:
        """Return the recorded calls of these roles, or all."""
        return [call for call in self.world.calls() if not roles or call.role in roles]

    def roles(self) -> list[str]:
        return [call.role for call in self.world.calls()]

    def leaves(self, *roles: str) -> list[TreeNodeRow]:
        """Return the ends of paths whose last call has one of these roles."""
        ends = {call.sampled_node_id for call in self.calls(*roles)}
        return [leaf for leaf in self.world.leaves() if leaf.id in ends]

    def answers(self) -> list[Exchange]:
        """Return the exchanges in which a model call was answered completely."""
        return [e for e in self.tap.exchanges() if e.method == "POST" and e.status == 200 and e.whole]


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> str:
    """Name of a catalogue file; tests choose it by indirect parametrization."""
    installed(request.param)
    return request.param


@pytest.fixture
def world(
    harness: str,
    database: Database,
    postgres_dsn: str,
    model_dir: Path,
    engine: ScriptedEngine,
    tmp_path: Path,
) -> World:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = World(database, postgres_dsn, model_dir, tmp_path, port)
    with transaction(database) as session:
        add_run(session, model_dir, engine.url, harness)
        attempts.open_attempt(session, EXECUTION, 1, "here")
    return made


@pytest.fixture
def attempt_without_gateway(
    harness: str, world: World, engine: ScriptedEngine, tmp_path: Path
) -> Iterator[HarnessAttempt]:
    """An attempt without a gateway, which the test starts itself."""
    with WireTap(tmp_path / "tap.sock", world.port) as tap:
        made = HarnessAttempt(harness, world, engine, tap, tmp_path / "attempt")
        yield made
        kill(made.directory)


@pytest.fixture
def attempt(attempt_without_gateway: HarnessAttempt) -> Iterator[HarnessAttempt]:
    """An attempt with the gateway in a thread."""
    with gateway_thread(attempt_without_gateway.world):
        yield attempt_without_gateway
