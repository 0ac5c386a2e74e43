"""Two gateways of one run at the same time on one database sample and record nothing twice."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import httpx
import numpy as np
import pytest
from sqlalchemy import text

from db.session import transaction
from gateway.service import call_seed
from gyre.trajectory.arrays import Ids, unpack_ids
from tests.gateway.conftest import EXECUTION, World, gateway_process, gateway_thread, wait_until
from tests.gateway.scripted_engine import Part, ScriptedEngine
from tests.gateway.test_calls import CHAT, abandon, by_seed, chat, said


@pytest.fixture
def other(world: World) -> World:
    """The same run, served by another gateway on a port of its own."""
    folder = world.folder / "other"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        return replace(world, port=free.getsockname()[1], folder=folder, apps=[])


@pytest.fixture
def two(world: World, other: World) -> Iterator[tuple[World, World]]:
    with ExitStack() as stack:
        stack.enter_context(gateway_thread(world))
        stack.enter_context(gateway_thread(other))
        yield world, other


def ask(world: World, *texts: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {world.token}"}
    return httpx.post(world.url + CHAT, json=chat(*texts), headers=headers, timeout=100)


def joined(world: World) -> bool:
    return httpx.get(f"{world.url}/health").json()["counts"].get("joined") == 1


def path_of(world: World, number: int) -> list[int]:
    """Return the recorded tokens from the root to the end of a call's answer."""
    by_id = {node.id: node for node in world.nodes()}
    node = by_id[world.calls()[number].sampled_node_id]
    pieces = [unpack_ids(node.token_ids)]
    while node.parent_id:
        offset, node = node.parent_offset, by_id[node.parent_id]
        pieces.append(unpack_ids(node.token_ids)[:offset])
    return np.concatenate(pieces[::-1]).tolist()


def test_a_retry_waits_for_a_call_that_the_other_gateway_holds(
    two: tuple[World, World], engine: ScriptedEngine
) -> None:
    first, second = two
    engine.script = by_seed
    engine.gate.clear()
    abandon(first, chat("hi"))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, second, "hi")
        wait_until(lambda: joined(second))
        owner = first.calls()[0].lease_owner
        engine.gate.set()
        answer = asked.result().raise_for_status()
    (call,) = first.calls()
    assert owner.startswith(f"here:{first.port}/")
    assert said(answer) == call.response["text"]
    assert len(engine.requests) == 1
    # The second gateway can continue from the answer that it read from the record.
    ask(second, "hi", said(answer), "more").raise_for_status()
    assert engine.requests[1].input_ids[: len(path_of(first, 0))] == path_of(first, 0)


def test_a_call_of_a_killed_gateway_is_resumed_with_its_index_and_seed(
    world: World, other: World, engine: ScriptedEngine
) -> None:
    engine.script = by_seed
    engine.gate.clear()
    with gateway_process(world) as killed:
        abandon(world, chat("hi"))
        wait_until(lambda: engine.requests)
        killed.kill()
        killed.wait()
    with transaction(world.database) as session:
        session.execute(text("UPDATE model_call SET lease_expires_at = now() - interval '1 s'"))
    engine.gate.set()
    with gateway_thread(other):
        answer = ask(other, "hi").raise_for_status()
    (call,) = world.calls()
    before, after = engine.requests
    assert before.sampling_params == after.sampling_params
    assert before.input_ids == after.input_ids
    assert (call.index, call.status) == (0, "committed")
    assert said(answer) == call.response["text"]


def test_a_conversation_that_alternates_is_one_path(two: tuple[World, World], engine: ScriptedEngine) -> None:
    """The answers spell "hello" in five tokens; encoded again it would be one, and not match."""

    def spelt(request: object, prompt: str) -> Part:
        letters = f"hello {len(engine.requests)}"
        ids = [token for letter in letters for token in engine.tokenizer.encode(letter)]
        return Part(ids=[*ids, engine.tokenizer.eos_token_id])

    engine.script = spelt
    texts = ["question 0"]
    for turn in range(6):
        answer = ask(two[turn % 2], *texts).raise_for_status()
        texts += [said(answer), f"question {turn + 1}"]
        path = path_of(two[0], turn)
        assert path[: len(engine.requests[turn].input_ids)] == engine.requests[turn].input_ids
    assert len(two[0].leaves()) == 1
    assert [call.index for call in two[0].calls()] == list(range(6))
    for turn in range(1, 6):
        before = path_of(two[0], turn - 1)
        assert engine.requests[turn].input_ids[: len(before)] == before


def test_calls_continue_while_the_record_is_read_again(
    two: tuple[World, World], engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record in memory stays complete until the new one replaces it as a whole."""
    first, second = two
    answer, elsewhere = said(ask(first, "hi")), said(ask(second, "other"))
    reading, go_on = threading.Event(), threading.Event()

    def slow(raw: bytes) -> Ids:
        if not reading.is_set():
            reading.set()
            go_on.wait(30)
        return unpack_ids(raw)

    monkeypatch.setattr("gateway.live_attempt.unpack_ids", slow)
    with ThreadPoolExecutor(2) as pool:
        behind = pool.submit(ask, first, "other", elsewhere, "more")
        assert reading.wait(30)
        known = pool.submit(ask, first, "hi", answer, "more")
        wait_until(lambda: len(engine.requests) >= 3)
        go_on.set()
        assert behind.result().status_code == known.result().status_code == 200
    assert all(call.num_reused_tokens for call in first.calls()[2:])


def test_concurrent_answers_of_both_gateways_get_distinct_indexes(
    two: tuple[World, World], engine: ScriptedEngine
) -> None:
    """Each gateway knows only its own tree, so both try to write the same call and node indexes.

    A call whose index was taken is sampled again, with the seed of its new index.
    """
    engine.script = lambda request, prompt: f"of {len(request.input_ids)}"
    engine.gate.clear()
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, two[i % 2], f"question {'and more ' * i}") for i in range(4)]
        wait_until(lambda: {call_seed(EXECUTION, 1, index) for index in range(4)} <= seeds_of(engine))
        engine.gate.set()
        assert [each.result().status_code for each in asked] == [200] * 4
    nodes = two[0].nodes()
    assert [node.index for node in nodes] == list(range(len(nodes)))
    assert len([node for node in nodes if node.kind == "sampled"]) == 4
    prompts = sorted({tuple(request.input_ids) for request in engine.requests})
    counts = [call.num_input_tokens for call in two[0].calls()]
    assert sorted(tuple(path_of(two[0], i)[: counts[i]]) for i in range(4)) == prompts


def seeds_of(engine: ScriptedEngine) -> set[int | None]:
    return {request.sampling_params.sampling_seed for request in engine.requests}
