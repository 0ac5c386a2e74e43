"""Training in bfloat16: fp32 masters, exact sums over branches, and agreement with the engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from app.audit.versions import MAX_GAP
from db import training
from db.object_store import BlobStore
from db.session import Database, transaction
from gpu_workers.trainer.attention import TreeAttention, TreeParams
from gpu_workers.trainer.data import TargetPath
from gpu_workers.trainer.optimizer import MainGradAdamW
from gpu_workers.trainer.ranks import Ranks
from gpu_workers.trainer.replica import Replica
from gpu_workers.trainer.trainer import Trainer
from gyre.contracts.boot import EngineBoot
from gyre.settings import Services
from gyre.settings.runfile import OptimizerSection
from gyre.trajectory.layout import Layout, lay_out
from tests.engine.conformance import EngineUnderTest
from tests.engine.conftest import free_port, start_engine
from tests.trainer.models import tiny_config
from tests.trainer.rows import BATCH, CLAIMANT, RUN, Turns, add_batch, add_run, run_config

CPU = torch.device("cpu")
VOCAB, PROMPT, TOKENS, ANSWERS = 61, 24, 100, 8


def test_masters_accumulate_updates_that_bfloat16_loses() -> None:
    """In [1/2, 1) bfloat16 numbers are 2**-8 = 3.9e-3 apart; an update of 5e-4 is an eighth of that."""
    section, start, num_steps = OptimizerSection(lr=5e-4), 0.75, 8
    kept: Any = nn.Parameter(torch.full((4,), start, dtype=torch.bfloat16))
    lost = nn.Parameter(kept.detach().clone())
    ours, alone = MainGradAdamW({"w": kept}, section), torch.optim.AdamW([lost], lr=5e-4, weight_decay=0.0)
    for number in range(num_steps):
        kept.main_grad, lost.grad = torch.ones(4), torch.ones(4, dtype=torch.bfloat16)
        ours.step(1.0)
        alone.step()
        assert number or kept.eq(start).all(), "one update is under half the gap between bfloat16 numbers"
    assert lost.eq(start).all()
    assert kept.eq(start - 2**-8).all()
    # With a constant gradient each step of Adam is the learning rate.
    torch.testing.assert_close(ours.state()["master"]["w"], torch.full((4,), start - num_steps * section.lr))


def test_a_prefix_of_many_branches_is_as_exact_as_flat_training() -> None:
    """20 branches leave a prefix, each one token later. Measured against float32, the gradients of the
    prefix's keys and values are no worse than those of separate paths, which are added in float32."""
    prefix, tail, branches = 40, 12, 20
    segments = [[("p", prefix + i), (f"b{i}", tail)] for i in range(branches)]
    layout = lay_out(segments)
    rng = torch.Generator().manual_seed(0)
    inputs = [torch.randn(layout.num_tokens, heads, 16, generator=rng).bfloat16() for heads in (4, 2, 2, 4)]
    # The prefix's own outputs get no gradient: separate paths would count it once per path.
    inputs[3][layout.rows[-1][: prefix + branches]] = 0
    exact = key_value_gradients(layout, [tensor.float() for tensor in inputs])
    tree = key_value_gradients(layout, inputs)
    flat = [torch.zeros_like(tensor) for tensor in exact]
    for rows in layout.rows:
        alone = lay_out([[("p", len(rows))]])
        for total, part in zip(flat, key_value_gradients(alone, [t[rows] for t in inputs]), strict=True):
            total[rows] += part.float()
    for name, one, other, best in zip("kv", tree, flat, exact, strict=True):
        shared = layout.rows[0][:prefix]
        errors = [
            (found[shared].float() - best[shared]).norm() / best[shared].norm() for found in (one, other)
        ]
        # The tree's sum is rounded to bfloat16 once more, by at most half of 2**-8; flat's sum is not.
        assert errors[0] < errors[1] + 2**-9, name


def key_value_gradients(layout: Layout, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Compute the gradients of key and value from (query, key, value, gradient of the output)."""
    query, key, value = (tensor.clone().requires_grad_() for tensor in inputs[:3])
    attention = TreeAttention(SimpleNamespace(kv_channels=16))
    batch = (tensor[:, None] for tensor in (query, key, value))
    attention(*batch, packed_seq_params=TreeParams(layout=layout)).backward(inputs[3].flatten(1)[:, None])
    assert key.grad is not None
    assert value.grad is not None
    return [key.grad, value.grad]


@dataclass(frozen=True)
class Run:
    """A trainer in bfloat16 that holds version 0, with its replica."""

    trainer: Trainer
    replica: Replica


@pytest.fixture
def run(
    database: Database, services: Services, ranks: Ranks, model_dir: Path, request: pytest.FixtureRequest
) -> Iterator[Run]:
    model = {"path": model_dir, "dtype": "bfloat16"}
    add_run(database, run_config(model_dir, model=model, loss={"form": "truncated"}))
    replica = Replica(tiny_config(tied=True), "bfloat16", OptimizerSection(lr=request.param), CPU)
    trainer = Trainer(database, BlobStore(services, database), ranks, replica, CLAIMANT)
    trainer.load(0)
    yield Run(trainer, replica)
    trainer.close()


def add_batches(database: Database, count: int) -> None:
    steps = [("grad", [(0, 0), (0, 1)]), ("grad", [(1, 0), (1, 1)])]
    for number in range(1, count + 1):
        add_batch(database, [Turns(1.0), Turns(-0.5)], steps, version=number)


@pytest.mark.parametrize("run", [2e-5], indirect=True)
def test_an_update_smaller_than_bfloat16_survives_a_reload(run: Run, database: Database) -> None:
    """bfloat16 numbers near 0.2 are 1e-3 apart: an update of 2e-5 moves few weights but most masters."""
    add_batches(database, 1)
    before = run.replica.export() or {}
    run.trainer.train(BATCH)
    after, state = run.replica.export() or {}, run.replica.export_optimizer()
    moved = torch.cat([(before[name] != after[name]).flatten() for name in before]).float().mean()
    assert 0 < moved < 0.2
    assert state
    masters = {name: tensor for name, tensor in state[0].items() if name.startswith("master/")}
    steps = torch.cat([(masters[f"master/{n}"] - before[n].float()).abs().flatten() for n in before])
    assert (steps > 1e-5).float().mean() > 0.8
    run.trainer.load(1)
    again = run.replica.export_optimizer()
    assert again
    assert all(torch.equal(again[0][name], master) for name, master in masters.items())


@pytest.fixture
def engine(model_dir: Path, tmp_path: Path) -> Iterator[EngineUnderTest]:
    """Start an engine in bfloat16, which rounds the float32 weights itself when it reads them."""
    boot = EngineBoot(model_path=str(model_dir), port=free_port(), epoch=CLAIMANT.epoch, dtype="bfloat16")
    process = start_engine(tmp_path, boot)
    with EngineUnderTest(f"http://127.0.0.1:{boot.port}") as found:
        yield found
    process.terminate()
    process.wait(30)


@pytest.mark.parametrize("run", [1e-2], indirect=True)
def test_the_engine_serves_the_version_that_was_trained(
    run: Run, engine: EngineUnderTest, database: Database
) -> None:
    add_batches(database, 1)
    first = sample(engine)
    pull(run, engine, database, 0)
    assert [path.tokens.tolist() for path in sample(engine)] == [path.tokens.tolist() for path in first]
    run.trainer.train(BATCH)
    stale = gaps(run.replica, first)
    pull(run, engine, database, 1)
    found = gaps(run.replica, sample(engine))
    mean_limit, tail_limit = MAX_GAP["bfloat16"]
    # On each side a logit goes through some 20 roundings of relative size 2**-8 / sqrt(3), together 1e-2, and
    # logits here are around 1: the gap's standard deviation is near 1e-2. The audit allows three times that
    # on average. The ratios of the loss rely on rounding being unbiased: the mean of n gaps stays within 5
    # standard errors of zero.
    assert np.abs(found).mean() < mean_limit
    assert np.abs(found).max() < tail_limit
    assert abs(found.mean()) < 5 * found.std() / len(found) ** 0.5
    assert np.abs(stale).mean() > 3 * mean_limit, "the next version must be distinguishable from rounding"


def pull(run: Run, engine: EngineUnderTest, database: Database, version: int) -> None:
    """Publish, have the engine pull, and compare its answer with the version's row."""
    reference = run.trainer.publish(version)
    body = {"reference": reference.model_dump(), "mode": "retract", "epoch": CLAIMANT.epoch}
    answer = engine.http.post("/pull_weights", json=body)
    run.trainer.release(version)
    assert answer.status_code == 200, answer.text
    with transaction(database) as session:
        stored = training.version_of(session, RUN, version)
    assert stored
    assert (answer.json()["version"], answer.json()["sha256"]) == (version, stored.sha256)
    assert reference.sha256 == stored.sha256


def sample(engine: EngineUnderTest) -> list[TargetPath]:
    """Sample answers as paths: sampled tokens are targets, with the engine's log-probabilities."""
    paths = list[TargetPath]()
    for seed in range(ANSWERS):
        prompt = [(seed + 5 * i) % VOCAB for i in range(PROMPT)]
        answer = engine.generate(prompt, seed=seed, max_new_tokens=TOKENS)
        targets = np.arange(PROMPT, PROMPT + TOKENS)
        tokens, logprobs = np.array(prompt + answer.ids), np.array(answer.logprobs, np.float32)
        segments = [(f"e{seed}", len(tokens) - 1)]
        paths.append(TargetPath(f"e{seed}", 1.0, TOKENS, tokens, targets, logprobs, segments))
    return paths


def gaps(replica: Replica, paths: list[TargetPath]) -> np.ndarray:
    """Compute log pi_trainer - log pi_engine of each target."""
    packed = replica.pack(paths)
    return (replica.forward(packed, 1.0).logprobs.detach() - packed.behaviour).double().numpy()
