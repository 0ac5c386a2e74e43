"""Postgres outages during calls: harnesses only see delay, and each call is written once."""

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from app.stack import postgres
from db import migrate
from gyre.host.ports import HOST, choose_port
from tests.gateway.conftest import World, gateway_thread, lose_every_other_answer, wait_until
from tests.gateway.scripted_engine import ScriptedEngine
from tests.gateway.test_calls import CHAT, by_seed, chat, said
from tests.gateway.wire import DIALECTS, refusal_in, request_in, text_in

AWAY_S = 1.0
"""Long enough for several tries of the gateway, far below how long it holds a call."""
TEXTS = ("one", "two", "three", "four")


class PostgresServer:
    """A separate Postgres for this module, which can be killed or frozen with all its processes."""

    def __init__(self, folder: Path) -> None:
        self._log, port = folder / "away.log", choose_port(set())
        self.dsn = f"postgresql://gyre:secret@{HOST}:{port}/postgres"
        postgres.initialise(folder / "away", "secret")
        # Commits must survive a kill of the processes, so only the flush to the disk is left out.
        self._spec = postgres.server(folder / "away", self._log, port, self.dsn, {"fsync": "off"})
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._spec.command, **self._spec.credentials._asdict(), cwd="/", stdout=output, stderr=output
            )
        wait_until(self._spec.healthy, self._process)

    def kill(self) -> None:
        assert self._process is not None
        for each in self._processes():
            each.kill()
        self._process.wait(30)

    def freeze(self) -> None:
        """Keep connections open, and answer nothing."""
        for each in self._processes():
            each.suspend()

    def thaw(self) -> None:
        for each in self._processes():
            each.resume()

    def _processes(self) -> list[psutil.Process]:
        """Return the postmaster first: once it is stopped, it starts no more children."""
        assert self._process is not None
        postmaster = psutil.Process(self._process.pid)
        return [postmaster, *postmaster.children(recursive=True)]


@pytest.fixture(scope="module")
def server(short_folder: Path) -> Iterator[PostgresServer]:
    made = PostgresServer(short_folder)
    made.start()
    yield made
    made.kill()


@pytest.fixture(scope="module")
def postgres_server(server: PostgresServer) -> str:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE gyre_template")
    migrate.upgrade(server.dsn.replace("/postgres", "/gyre_template"))
    return server.dsn


@contextmanager
def server_away(server: PostgresServer, how: str) -> Iterator[None]:
    """Take the server away during the block, and bring it back whatever happens."""
    go_away(server, how)
    try:
        yield
    finally:
        come_back(server, how)


def go_away(server: PostgresServer, how: str) -> None:
    server.kill() if how == "killed" else server.freeze()


def come_back(server: PostgresServer, how: str) -> None:
    server.start() if how == "killed" else server.thaw()


def ask_all(pool: ThreadPoolExecutor, http: httpx.Client) -> list[Future[httpx.Response]]:
    return [pool.submit(http.post, CHAT, json=chat(text)) for text in TEXTS]


def assert_each_written_once(world: World, engine: ScriptedEngine, answers: list[httpx.Response]) -> None:
    assert [answer.status_code for answer in answers] == [200] * len(TEXTS)
    committed = [call for call in world.calls() if call.status == "committed"]
    assert sorted(said(answer) for answer in answers) == sorted(call.response["text"] for call in committed)
    assert len(committed) == len(engine.requests) == len(TEXTS)
    sampled = [node for node in world.nodes() if node.kind == "sampled"]
    assert {node.id for node in sampled} == {call.sampled_node_id for call in committed}
    assert [node.index for node in world.nodes()] == list(range(len(world.nodes())))


@pytest.mark.parametrize("stage", ["begin", "sampling", "commit"])
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_calls_outlast_a_postgres_that_is_away(
    http: httpx.Client, gateway: World, engine: ScriptedEngine, server: PostgresServer, how: str, stage: str
) -> None:
    engine.script = by_seed
    engine.gate.clear()
    http.post("/v1/messages/count_tokens", json=chat("one")).raise_for_status()
    with ThreadPoolExecutor(len(TEXTS)) as pool:
        if stage == "begin":
            go_away(server, how)
        asked = ask_all(pool, http)
        if stage != "begin":
            wait_until(lambda: len(engine.requests) == len(TEXTS))
            go_away(server, how)
        if stage == "commit":
            engine.gate.set()
        time.sleep(AWAY_S)
        early = [each for each in asked if each.done()]
        come_back(server, how)
        engine.gate.set()
        answers = [each.result() for each in asked]
    assert not early
    assert_each_written_once(gateway, engine, answers)


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_postgres_away_for_too_long_is_one_503_and_a_retry_works(
    world: World, engine: ScriptedEngine, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("gateway.store.LEAST_TRY_S", 2)
    world.boot_options["hold_s"] = 2
    refusals = {"anthropic": 529}  # Anthropic's "overloaded"
    asked = [request_in(dialect, "hi", max_tokens=50) for dialect in DIALECTS]
    with gateway_thread(world), httpx.Client(base_url=f"{world.url}/t/{world.token}", timeout=60) as client:
        client.post(CHAT, json=chat("before")).raise_for_status()
        with server_away(server, how):
            refused = [client.post(path, json=body) for path, body in asked]
        retried = [client.post(path, json=body).raise_for_status() for path, body in asked]
    for dialect, answer, again in zip(DIALECTS, refused, retried, strict=True):
        assert (answer.status_code, answer.headers["retry-after"]) == (refusals.get(dialect, 503), "1")
        assert refusal_in(answer.json())[1] == "the record cannot be written at the moment"
        assert text_in(dialect, again.json()) == "done"
    # A thawed server executes what it was sent while frozen: rows that nobody works on. A call that could not
    # be recorded may have been sampled.
    committed = [call for call in world.calls() if call.status == "committed"]
    assert len(committed) == 1 + len(DIALECTS) <= len(engine.requests)


def test_an_answer_that_could_not_be_recorded_is_sampled_again(
    world: World, engine: ScriptedEngine, server: PostgresServer
) -> None:
    """The first row belongs to nobody: it stays in flight without a node until the attempt is sealed."""
    world.boot_options["hold_s"] = 2
    engine.script = by_seed
    engine.gate.clear()
    with gateway_thread(world), httpx.Client(base_url=f"{world.url}/t/{world.token}", timeout=60) as client:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client.post, CHAT, json=chat("hi"))
            # A call is sampled while its row is written: the row must be there before the server goes.
            wait_until(lambda: engine.requests and world.calls())
            with server_away(server, "killed"):
                engine.gate.set()
                refused = asked.result()
        answer = client.post(CHAT, json=chat("hi")).raise_for_status()
    assert refused.status_code == 503
    assert [call.status for call in world.calls()] == ["in_flight", "committed"]
    assert said(answer) == world.calls()[1].response["text"]
    assert [node.call_id for node in world.nodes()] == [world.calls()[1].id] * 2


def test_a_batch_that_is_executed_twice_writes_once(
    http: httpx.Client, gateway: World, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every statement is committed, but its connection is lost once before the gateway reads the reply."""
    engine.script = by_seed
    engine.gate.clear()
    with ThreadPoolExecutor(len(TEXTS)) as pool:
        asked = ask_all(pool, http)
        wait_until(lambda: len(engine.requests) == len(TEXTS))
        with monkeypatch.context() as patched:
            heard = lose_every_other_answer(patched)
            engine.gate.set()
            answers = [each.result() for each in asked]
    assert "lost" in heard
    assert_each_written_once(gateway, engine, answers)
