"""Cells that die, engines that are slow, aborts that come with the last token."""

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
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def ask(world: World, text: str = "hi") -> str:
    headers = {"authorization": f"Bearer {world.token}"}
    return said(httpx.post(world.url + CHAT, json=chat(text), headers=headers, timeout=60))


def add_attempt(world: World) -> World:
    """Another execution of the run, seen as its own world."""
    name = ExecutionId("run/r/group/0/rollout/1")
    with transaction(world.database) as session:
        session.add(ExecutionRow(id=name, group_id="run/r/group/0", run_id="r", index=1))
        session.flush()
        attempts.open_attempt(session, name, 1, "here")
    return replace(world, attempt=attempt_id(name, 1))


def test_e18_calls_go_to_the_cells_that_are_left(
    gateway: World, engine: ScriptedEngine, dead_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor needs a while to see that a cell is gone; until then its row says that it serves."""
    monkeypatch.setattr(engines, "CELLS_FRESH_S", 0)
    ask(gateway)
    with transaction(gateway.database) as session:
        session.get_one(CellRow, "run/r/cell/0").engine_url = dead_url
        session.add(CellRow(id="run/r/cell/1", run_id="r", index=1, capacity=8, engine_url=engine.url))
    other = add_attempt(gateway)
    assert ask(gateway, "the affine one") == ask(other, "a new one") == "done"
    assert [call.cell_id for call in gateway.calls() + other.calls()] == [
        "run/r/cell/0",
        *["run/r/cell/1"] * 2,
    ]


def test_an_answer_may_take_longer_than_an_engine_may_be_silent(world: World, engine: ScriptedEngine) -> None:
    """It comes as a whole, so it is silent for as long as its tokens take."""
    world.boot_options = {"engine_read_s": 0.5, "hold_s": 0.2}
    engine.gate.clear()
    with gateway_thread(world), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, world)
        with pytest.raises(TimeoutError):
            asked.result(2.0)
        engine.gate.set()
        assert asked.result(30) == "done"
    assert len(engine.requests) == 1


def test_nothing_is_sampled_behind_a_stop_token(gateway: World, engine: ScriptedEngine) -> None:
    """SGLang names an abort before it looks whether the token of that step ends the answer."""
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
def test_what_an_abort_leaves(ids: list[int], reason: str) -> None:
    sampled = SampledAnswer(ids=ids)
    sampled.end_at(SamplingParams(max_new_tokens=3, stop_token_ids=[9]))
    assert sampled.finish_reason == reason


def test_an_engine_never_gets_two_requests_of_one_name(gateway: World, engine: ScriptedEngine) -> None:
    """It may still work on the first: SGLang refuses the second for ever."""
    seen = set[str]()

    def script(request: GenerateRequest, prompt: str) -> Part | str:
        name = request.rid or ""
        if name in seen:
            return Part(status=400, message="Duplicate request ID detected")
        seen.add(name)
        return "done" if len(seen) == 3 else Part(status=(404, 500)[len(seen) - 1])

    engine.script = script
    assert ask(gateway) == "done"
