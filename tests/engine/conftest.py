"""Tiny Qwen3 models made by transformers, a scheduler in this process, and an engine in its own process."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from gpu_workers.engine.build import build_scheduler, read_model
from gpu_workers.engine.qwen3 import Model
from gpu_workers.engine.requests import Generation
from gpu_workers.engine.scheduler import Scheduler
from gyre.contracts.boot import EngineBoot
from gyre.contracts.engine import GenerateRequest, GenerateResponse, SamplingParams
from gyre.host.ports import choose_port

torch.set_num_threads(1)
VOCAB = 90
CONTEXT = 2048
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": True,
    "max_position_embeddings": CONTEXT,
    # Large, so that logits are far from uniform and attention has an effect.
    "initializer_range": 0.2,
}


def save_model(path: Path, seed: int, **changes: object) -> Qwen3ForCausalLM:
    """Save a random Qwen3. Its norms are random too: norms of ones would hide a missing or swapped norm."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(Qwen3Config(**(SIZES | changes))).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(path)
    return model


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Qwen3ForCausalLM]:
    """Return a model's directory and the same model under transformers."""
    path = tmp_path_factory.mktemp("model")
    return path, save_model(path, seed=0)


@pytest.fixture(scope="session")
def other_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a model of the same architecture with other weights."""
    path = tmp_path_factory.mktemp("other")
    save_model(path, seed=1)
    return path


@pytest.fixture(scope="session")
def model(reference: tuple[Path, Qwen3ForCausalLM]) -> Model:
    return read_model(reference[0], context_tokens=CONTEXT, dtype="float32", device="cpu")


class SchedulerDriver:
    """A running scheduler. ``ask`` submits a request and ``result`` waits for its answer."""

    def __init__(self, boot: EngineBoot) -> None:
        self.changed = threading.Condition()
        self.notified: list[tuple[str, int]] = []
        """(rid, number of tokens so far), in the order of the notifications."""
        self.scheduler: Scheduler = build_scheduler(boot, self._notify)
        self.scheduler.start()

    def _notify(self, generations: list[Generation]) -> None:
        with self.changed:
            self.notified += [(g.rid, len(g.sampled)) for g in generations]
            self.changed.notify_all()

    def ask(self, prompt: list[int], *, rid: str = "r", stream: bool = True, **params: object) -> Generation:
        request = GenerateRequest(
            input_ids=prompt, sampling_params=SamplingParams.model_validate(params), stream=stream
        )
        generation = Generation.of(request, rid, CONTEXT)
        self.scheduler.submit(generation)
        return generation

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout=60)

    def wait_tokens(self, generation: Generation, count: int) -> None:
        self.wait(lambda: len(generation.sampled) >= count or generation.ended)

    def result(self, generation: Generation) -> GenerateResponse:
        self.wait(lambda: generation.ended)
        assert generation.failure is None, generation.failure
        return generation.snapshot()


@pytest.fixture
def driver(reference: tuple[Path, Qwen3ForCausalLM]) -> Iterator[SchedulerDriver]:
    boot = EngineBoot(model_path=str(reference[0]), port=0, epoch=1, max_batch=8, context_tokens=CONTEXT)
    found = SchedulerDriver(boot)
    yield found
    found.scheduler.stop()
    assert not found.scheduler.alive


def free_port() -> int:
    return choose_port(set())


def start_engine(folder: Path, boot: EngineBoot) -> subprocess.Popen[bytes]:
    """Start an engine process and return it once it is healthy."""
    file = folder / "boot.json"
    file.write_text(boot.model_dump_json())
    process = subprocess.Popen([sys.executable, "-m", "gpu_workers.engine", "--boot", str(file)])
    try:
        wait_healthy(boot.port, process)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def wait_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 90
    while time.monotonic() < until:
        assert process.poll() is None, "the engine ended"
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the engine did not become healthy")


@pytest.fixture(scope="session")
def engine_url(
    reference: tuple[Path, Qwen3ForCausalLM], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Run an embedded engine in its own process and return its URL."""
    port = free_port()
    boot = EngineBoot(
        model_path=str(reference[0]), port=port, epoch=3, weight_version=5, context_tokens=CONTEXT
    )
    process = start_engine(tmp_path_factory.mktemp("engine"), boot)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    assert process.wait(30) == -signal.SIGTERM
