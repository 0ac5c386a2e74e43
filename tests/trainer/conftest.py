"""Fixtures for the trainer: the process groups of one rank, a tiny Qwen3 model, a replica that holds it."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config

with warnings.catch_warnings():
    # Importing Megatron warns about torch.jit in torch._inductor and about deprecated modules of Megatron.
    warnings.simplefilter("ignore")
    from gpu_workers.trainer.ranks import Ranks
    from gpu_workers.trainer.replica import Replica

from gyre.settings.runfile import OptimizerSection
from tests.trainer.models import save_model, tiny_config


def pytest_configure(config: pytest.Config) -> None:
    # Megatron's RowParallelLinear calls a Megatron function without a group, and the function warns about it.
    config.addinivalue_line("filterwarnings", "ignore:.*tp_group is None:DeprecationWarning")


@pytest.fixture(scope="session", autouse=True)
def ranks() -> Iterator[Ranks]:
    """Yield the process groups of a single rank; Megatron allows one set per process."""
    torch.set_num_threads(1)
    yield Ranks(0, 1, "", 1, torch.device("cpu"))
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="session", params=[True, False], ids=["tied", "untied"])
def hf(request: pytest.FixtureRequest) -> Qwen3Config:
    return tiny_config(tied=request.param)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return save_model(tiny_config(tied=True), tmp_path / "model")


@pytest.fixture
def replica(model_dir: Path) -> Replica:
    """Make a replica in float64, so that differences are rounding and nothing else."""
    made = Replica(tiny_config(tied=True), "float64", OptimizerSection(lr=1e-2), torch.device("cpu"))
    made.load(str(model_dir / "model.safetensors"), None)
    made.begin()
    return made
