"""One rank, two data-parallel ranks and two tensor-parallel ranks make the same update."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gpu_workers.trainer.ranks import Ranks
from gyre.stack.ports import HOST, choose_port
from tests.trainer import rank
from tests.trainer.models import save_model, tiny_config


def run_ranks(folder: Path, tensor_parallel: int, *, tied: bool) -> dict[str, Tensor]:
    rendezvous = f"{HOST}:{choose_port(set())}"
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.trainer.rank", str(number), "2", rendezvous),
                *(str(tensor_parallel), str(int(tied)), str(folder)),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    _, error = processes[0].communicate(timeout=120)
    assert processes[0].returncode == 0, error
    _, error = processes[1].communicate(timeout=60)
    assert "rank 0 is gone" in error
    return load_file(folder / f"tp{tensor_parallel}.safetensors")


@pytest.mark.parametrize(("tensor_parallel", "tied"), [(1, True), (2, False)])
def test_two_ranks_make_the_update_of_one(
    ranks: Ranks, tmp_path: Path, tensor_parallel: int, tied: bool
) -> None:
    folder = save_model(tiny_config(tied=tied), tmp_path / "model", torch.float64)
    found = run_ranks(folder, tensor_parallel, tied=tied)
    expected = rank.train(ranks, str(folder / "model.safetensors"), tied=tied)
    assert found.keys() == expected.keys()
    errors = {name: (found[name] - expected[name]).abs().max().item() for name in expected}
    # Moments are of the size of gradients, at most CLIP_NORM: 1e-9 is seven orders under them.
    assert max(errors.values()) < 1e-9, max(errors, key=lambda name: errors[name])
    assert (expected["norms"] > rank.CLIP_NORM).all()
