"""The engine client: cells that die, slow engines, aborts that come with the last token."""

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest

from db import attempts
from db.models import CellRow, ExecutionRow
from db.session import transaction
from gateway import engines
from gateway.engines import SampledAnswer
from gyre.contracts.engine import GenerateRequest, SamplingParams
from gyre.contracts.ids import ExecutionId, attempt_id
from gyre.trajectory.arrays import unpack_ids
from tests.gateway.conftest import World, gateway_thread
from tests.gateway.scripted_engine import Part, ScriptedEngine
from tests.gateway.test_calls import CHAT, chat, said


@pytest.fixture
def dead_url() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def ask(world: World, text: str = "hi") -> str:
    headers = {"authorization": f"Bearer {world.token}"}
    return said(httpx.post(world.url + CHAT, json=chat(text), headers=headers, timeout=60))


def add_attempt(world: World) -> World:
    """Add another execution of the run, and return a world for its attempt."""
    name = ExecutionId("run/r/group/0/rollout/1")
    with transaction(world.database) as session:
        session.add(ExecutionRow(id=name, group_id="run/r/group/0", run_id="r", index=1))
        session.flush()
        attempts.open_attempt(session, name, 1, "here")
    return replace(world, attempt=attempt_id(name, 1))


def test_calls_of_a_dead_cell_go_to_the_others(
    gateway: World, engine: ScriptedEngine, dead_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead cell's row says that it serves until its supervisor notices.

    Reported elsewhere: the router kept picking a dead cell because of cache affinity.
    """
    monkeypatch.setattr(engines, "CELLS_FRESH_S", 0)
    ask(gateway)
    with transaction(gateway.database) as session:
        session.get_one(CellRow, "run/r/cell/0").engine_url = dead_url
        session.add(CellRow(id="run/r/cell/1", run_id="r", index=1, capacity=8, engine_url=engine.url))
    other = add_attempt(gateway)
    assert ask(gateway, "by affinity") == ask(other, "new") == "done"
    assert [call.cell_id for call in gateway.calls() + other.calls()] == [
        "run/r/cell/0",
        *["run/r/cell/1"] * 2,
    ]


def test_an_answer_may_take_longer_than_an_engine_may_be_silent(world: World, engine: ScriptedEngine) -> None:
    """It comes as a whole, so the engine is silent while it samples."""
    world.boot_options = {"engine_read_s": 0.5, "hold_s": 0.2}
    engine.gate.clear()
    with gateway_thread(world), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, world)
        with pytest.raises(TimeoutError):
            asked.result(2.0)
        engine.gate.set()
        assert asked.result(30) == "done"
    assert len(engine.requests) == 1


def test_nothing_is_sampled_after_a_stop_token(gateway: World, engine: ScriptedEngine) -> None:
    """SGLang reports an abort before it checks whether the token of that step ends the answer."""
    whole = engine.tokenizer.encode("whole", add_special_tokens=False)
    engine.script = lambda request, prompt: Part(ids=[*whole, engine.tokenizer.eos_token_id], finish="abort")
    assert ask(gateway) == "whole"
    assert len(engine.requests) == 1
    (_, sampled), (call,) = gateway.nodes(), gateway.calls()
    assert unpack_ids(sampled.token_ids).tolist() == [*whole, engine.tokenizer.eos_token_id]
    assert (sampled.finish_reason, call.finish_reason) == ("stop", "stop")


@pytest.mark.parametrize(
    ("ids", "reason"), [([5, 9], "stop"), ([9, 5], "abort"), ([5, 5, 5], "length"), ([], "abort")]
)
def test_an_abort_with_the_last_token_is_no_abort(ids: list[int], reason: str) -> None:
    sampled = SampledAnswer(ids=ids)
    sampled.end_at(SamplingParams(max_new_tokens=3, stop_token_ids=[9]))
    assert sampled.finish_reason == reason


def test_request_names_are_unique(gateway: World, engine: ScriptedEngine) -> None:
    """An engine may still work on the first: SGLang then refuses the second forever."""
    seen = set[str]()

    def script(request: GenerateRequest, prompt: str) -> Part | str:
        name = request.rid or ""
        if name in seen:
            return Part(status=400, message="Duplicate request ID detected")
        seen.add(name)
        return "done" if len(seen) == 3 else Part(status=(404, 500)[len(seen) - 1])

    engine.script = script
    assert ask(gateway) == "done"
