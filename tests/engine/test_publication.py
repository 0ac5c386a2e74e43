"""Weights pulled with Mooncake from another process: no request is dropped, stale commands are fenced."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from torch import Tensor
from transformers import Qwen3ForCausalLM

from gpu_workers.engine.load_weights import read_directory
from gpu_workers.transfer import WeightSource, payload_sha256
from gyre.contracts.boot import EngineBoot
from gyre.contracts.engine import WeightsReference
from tests.engine.conformance import EngineUnderTest
from tests.engine.conformance.checks import logprobs_match_transformers
from tests.engine.conformance.extensions import info
from tests.engine.conftest import free_port, start_engine

EPOCH = 4


@pytest.fixture(scope="module")
def engine(
    reference: tuple[Path, Qwen3ForCausalLM], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineUnderTest]:
    """Run an engine that serves version 1, which it read from disk."""
    port = free_port()
    boot = EngineBoot(model_path=str(reference[0]), port=port, epoch=EPOCH, weight_version=1)
    process = start_engine(tmp_path_factory.mktemp("publication"), boot)
    with EngineUnderTest(f"http://127.0.0.1:{port}") as found:
        yield found
    process.terminate()
    assert process.wait(30) == -signal.SIGTERM


@pytest.fixture(scope="module")
def source() -> Iterator[WeightSource]:
    found = WeightSource()
    yield found
    found.close()


@pytest.fixture(scope="module")
def own(reference: tuple[Path, Qwen3ForCausalLM]) -> dict[str, Tensor]:
    return read_directory(reference[0])


@pytest.fixture(scope="module")
def other(other_path: Path) -> dict[str, Tensor]:
    return read_directory(other_path)


def pull(engine: EngineUnderTest, reference: WeightsReference, **changes: Any) -> httpx.Response:
    body = {"reference": reference.model_dump(), "mode": "retract", "epoch": EPOCH} | changes
    return engine.http.post("/pull_weights", json=body)


def refused(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    return response.json()["error"]["message"]


def expose(source: WeightSource, tensors: dict[str, Tensor], engine: EngineUnderTest) -> WeightsReference:
    """Expose the tensors as the version after the served one."""
    return source.expose(tensors, info(engine).weight_version + 1)


def test_the_weights_on_disk_are_verified_by_a_pull_of_their_version(
    engine: EngineUnderTest, source: WeightSource, own: dict[str, Tensor]
) -> None:
    before = engine.greedy(10).ids
    answer = pull(engine, source.expose(own, 1)).json()
    assert answer["version"] == info(engine).weight_version == 1
    assert answer["sha256"] == payload_sha256(own)
    assert engine.greedy(10).ids == before


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_running_request_survives(
    engine: EngineUnderTest, source: WeightSource, own: dict[str, Tensor], other: dict[str, Tensor], mode: str
) -> None:
    first = info(engine).weight_version
    reference = expose(source, other if mode == "retract" else own, engine)
    with engine.stream(engine.prompt(), seed=1, max_new_tokens=engine.long_tokens) as events:
        next(events)
        answer = pull(engine, reference, mode=mode)
        last = list(events)[-1]
    assert answer.status_code == 200, answer.text
    assert answer.json()["num_bytes"] > 0
    meta = last.meta
    assert [version for version, _ in meta.weight_versions] == [first, first + 1]
    assert sum(count for _, count in meta.weight_versions) == engine.long_tokens
    later = meta.weight_versions[1][1]
    assert meta.mixed_kv_tokens == (later if mode == "in_place" else 0)


def test_new_weights_answer_and_a_repeated_pull_is_free(
    engine: EngineUnderTest, source: WeightSource, other: dict[str, Tensor], other_path: Path
) -> None:
    reference = expose(source, other, engine)
    first = pull(engine, reference).json()
    warm = engine.greedy(4, engine.prompt(64))
    source.release(reference.version)
    again = pull(engine, reference).json()
    assert {k: first[k] for k in ("version", "sha256")} == {k: again[k] for k in ("version", "sha256")}
    assert engine.greedy(4, engine.prompt(64)).meta.cached_tokens > 0, "an idempotent answer must not flush"
    assert warm.meta.weight_versions == [(reference.version, 4)]
    engine.model_path = other_path
    logprobs_match_transformers(engine)


def test_wrong_commands_change_nothing(
    engine: EngineUnderTest, source: WeightSource, own: dict[str, Tensor], other: dict[str, Tensor]
) -> None:
    assert pull(engine, expose(source, own, engine)).status_code == 200
    version = info(engine).weight_version
    before = engine.greedy(10).ids
    reference = source.expose(other, version + 1)
    assert "epoch" in refused(pull(engine, reference, epoch=EPOCH + 1), 409)
    same = reference.model_copy(update={"version": version})
    assert "sha256" in refused(pull(engine, same), 409)
    older = reference.model_copy(update={"version": version - 1})
    assert "older" in refused(pull(engine, older), 409)
    forged = reference.model_copy(update={"sha256": "0" * 64})
    refused(pull(engine, forged), 502)
    partial = source.expose({k: v for k, v in other.items() if "layers.1" not in k}, version + 2)
    assert "model.layers.1" in refused(pull(engine, partial), 502)
    refused(pull(engine, reference, mode="sideways"), 400)
    assert info(engine).weight_version == version
    assert engine.greedy(10).ids == before


def test_pull_while_paused_and_released(
    engine: EngineUnderTest, source: WeightSource, other: dict[str, Tensor]
) -> None:
    engine.command("/pause_generation")
    engine.command("/release_memory_occupation")
    assert pull(engine, expose(source, other, engine)).status_code == 200
    engine.command("/resume_memory_occupation")
    held = engine.in_background(lambda: engine.greedy(4))
    while info(engine).extra["num_waiting"] == 0:
        time.sleep(0.01)
    engine.command("/continue_generation")
    assert held.result().meta.weight_versions == [(info(engine).weight_version, 4)]
