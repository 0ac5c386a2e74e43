"""Idle attempts are evicted beyond the bound, and no attempt is ever in memory twice."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from db import attempts
from db.models import ExecutionRow
from db.session import transaction
from gateway import attempt_cache, delivered, service
from gateway.rendering import Renderer
from gyre.contracts.ids import ExecutionId, attempt_id
from gyre.contracts.tokens import attempt_token
from gyre.trajectory.arrays import Ids
from tests.gateway.conftest import SECRET, World, wait_until
from tests.gateway.scripted_engine import ScriptedEngine
from tests.gateway.test_calls import CHAT, by_seed, chat, said


@pytest.fixture
def others(world: World) -> list[str]:
    """Tokens of two more attempts."""
    names = [ExecutionId(f"run/r/group/0/rollout/{index}") for index in (1, 2)]
    with transaction(world.database) as session:
        for index, name in enumerate(names, 1):
            session.add(ExecutionRow(id=name, group_id="run/r/group/0", run_id="r", index=index))
            session.flush()
            attempts.open_attempt(session, name, 1, "here")
    return [attempt_token(SECRET, attempt_id(name, 1)) for name in names]


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evict every idle attempt."""
    monkeypatch.setattr(attempt_cache, "MOST_HELD_TOKENS", 0)


def ask(world: World, token: str, *texts: str) -> str:
    body, headers = chat(*texts), {"authorization": f"Bearer {token}"}
    return said(httpx.post(world.url + CHAT, json=body, headers=headers, timeout=30))


def all_delivered(world: World) -> bool:
    return all(call.delivered_at for call in world.calls())


def num_loaded(world: World) -> int:
    return httpx.get(f"{world.url}/health").json()["counts"]["loaded"]


@pytest.mark.usefixtures("no_room")
def test_an_attempt_whose_prompt_is_being_built_stays(
    gateway: World, engine: ScriptedEngine, others: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its text is encoded, the request is not in flight yet, and must not count as idle.

    Then its sibling is a call of its own.
    """
    engine.script = by_seed
    ask(gateway, gateway.token, "before")
    wait_until(lambda: all_delivered(gateway))
    encode, encoding, go_on = Renderer.encode, threading.Event(), threading.Event()

    def slow(self: Renderer, text: str) -> Ids:
        if "hold" in text and not encoding.is_set():
            encoding.set()
            go_on.wait(30)
        return encode(self, text)

    monkeypatch.setattr(service, "LONG_CHARACTERS", 0)
    monkeypatch.setattr(Renderer, "encode", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, gateway, gateway.token, "hold")
        encoding.wait(30)
        ask(gateway, others[0], "hi")
        engine.gate.clear()
        go_on.set()
        wait_until(lambda: len(gateway.calls()) == 2)
        sibling = pool.submit(ask, gateway, gateway.token, "hold")
        wait_until(lambda: len(engine.requests) == 4)
        engine.gate.set()
        assert first.result() != sibling.result()
    assert [call.status for call in gateway.calls()] == ["committed"] * 3
    assert num_loaded(gateway) == 2


@pytest.mark.usefixtures("no_room")
def test_an_attempt_stays_until_its_delivery_is_written(
    gateway: World, engine: ScriptedEngine, others: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded again before that, it would mistake an equal request for a retry."""
    monkeypatch.setattr(delivered, "GATHER_S", 1.0)
    engine.script = by_seed
    first = ask(gateway, gateway.token, "hi")
    ask(gateway, others[0], "hi")
    assert ask(gateway, gateway.token, "hi") != first


def test_the_least_recently_used_is_evicted_first(
    gateway: World, others: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(gateway, gateway.token, "hi")
    ask(gateway, others[0], "hi")
    ask(gateway, gateway.token, "hi there")
    wait_until(lambda: all_delivered(gateway))
    held = sum(node.num_tokens for node in gateway.nodes())
    monkeypatch.setattr(attempt_cache, "MOST_HELD_TOKENS", held + 6)  # plus the text of the conversations
    ask(gateway, others[1], "hi")
    assert num_loaded(gateway) == 3
    ask(gateway, gateway.token, "and now")
    assert num_loaded(gateway) == 3
    ask(gateway, others[0], "and now")
    assert num_loaded(gateway) == 4


def test_the_texts_of_answers_count(
    gateway: World, engine: ScriptedEngine, others: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.script = lambda request, prompt: "x" * 400
    ask(gateway, gateway.token, "hi")
    wait_until(lambda: all_delivered(gateway))
    held = sum(node.num_tokens for node in gateway.nodes())
    monkeypatch.setattr(attempt_cache, "MOST_HELD_TOKENS", held + 50)
    ask(gateway, others[0], "hi")
    ask(gateway, gateway.token, "hi there")
    assert num_loaded(gateway) == 3


def test_an_attempt_that_failed_to_load_is_loaded_again(
    gateway: World, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That holds for any failure, also for an unforeseen one."""
    load, failed = attempt_cache.load_attempt, threading.Event()

    def fail_once(*arguments: object) -> object:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("as the test wants")
        return load(*arguments)

    monkeypatch.setattr(attempt_cache, "load_attempt", fail_once)
    headers = {"authorization": f"Bearer {gateway.token}"}
    broken = httpx.post(gateway.url + CHAT, json=chat("hi"), headers=headers, timeout=30)
    assert broken.status_code == 500
    assert ask(gateway, gateway.token, "hi") == "done"
