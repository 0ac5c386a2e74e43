"""One rank on separate paths and two data- or tensor-parallel ranks on trees make the same update."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gpu_workers.trainer.ranks import Ranks
from tests.trainer import rank
from tests.trainer.models import save_model, tiny_config
from tests.trainer.processes import run_ranks

LAYOUTS = pytest.mark.parametrize(("tensor_parallel", "tied"), [(1, True), (2, False)])


def train_both(
    ranks: Ranks, folder: Path, tensor_parallel: int, *, tied: bool, dtype: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Train on two ranks and on one; in float64 the single rank trains on separate paths."""
    save_model(tiny_config(tied=tied), folder, getattr(torch, dtype))
    codes, stderr = run_ranks(rank.main, folder, tensor_parallel, tied, dtype, folder)
    assert codes == [0, 1], stderr
    assert "rank 0 is gone" in stderr[1]
    weights = str(folder / "model.safetensors")
    expected = rank.train(ranks, weights, tied=tied, dtype=dtype, flat=dtype == "float64")
    found = load_file(folder / "result.safetensors")
    assert found.keys() == expected.keys()
    assert (expected["norms"] > rank.CLIP_NORM).all()
    return found, expected


@LAYOUTS
def test_two_ranks_make_the_update_of_one(
    ranks: Ranks, tmp_path: Path, tensor_parallel: int, tied: bool
) -> None:
    found, expected = train_both(ranks, tmp_path, tensor_parallel, tied=tied, dtype="float64")
    errors = {name: (found[name] - expected[name]).abs().max().item() for name in expected}
    # Moments are as large as gradients, at most CLIP_NORM: 1e-9 is seven orders of magnitude below.
    assert max(errors.values()) < 1e-9, max(errors, key=lambda name: errors[name])


@LAYOUTS
def test_two_ranks_in_bfloat16(ranks: Ranks, tmp_path: Path, tensor_parallel: int, tied: bool) -> None:
    found, expected = train_both(ranks, tmp_path, tensor_parallel, tied=tied, dtype="bfloat16")
    moments = [name for name in expected if name.startswith("exp_avg/")]
    errors = {n: ((found[n] - expected[n]).norm() / expected[n].norm()).item() for n in moments}
    # Replicas do the same arithmetic and add gradients in float32. Tensor parallelism adds bfloat16 partial
    # sums in another order: in each layout a gradient goes through some 40 roundings of relative size
    # 2**-8 / sqrt(3), together 2 %.
    assert max(errors.values()) < (1e-6 if tensor_parallel == 1 else 0.1), errors
