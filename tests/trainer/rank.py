"""A script for one of two ranks that train on fixed paths; rank 0 writes the resulting weights."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from gpu_workers.trainer.data import TargetPath
from gpu_workers.trainer.ranks import Ranks
from gpu_workers.trainer.replica import Replica
from gyre.settings.runfile import LossSection, OptimizerSection
from tests.trainer.models import paths_of, random_nodes, random_path, separated, tiny_config

UPDATES, STEPS_PER_UPDATE, CLIP_NORM = 2, 4, 0.05
SECTION = LossSection(form="truncated", kl_coefficient=0.1, entropy_coefficient=0.1)


def train(
    ranks: Ranks, weights_file: str, *, tied: bool, dtype: str, flat: bool = False
) -> dict[str, torch.Tensor]:
    """Train on the same micro-steps in any layout. Returns weights, moments and norms on rank 0.

    ``flat`` trains the same paths with nothing shared.
    """
    device = torch.device("cpu")
    replica = Replica(tiny_config(tied=tied), dtype, OptimizerSection(weight_decay=0.1), device)
    if ranks.rank:
        ranks.follow(replica)
    ranks.call(replica, "load", weights_file, None)
    norms = list[float]()
    for update in range(UPDATES):
        ranks.call(replica, "begin")
        steps = [step_paths(update, index) for index in range(STEPS_PER_UPDATE)]
        steps = [separated(paths) for paths in steps] if flat else steps
        for start in range(0, STEPS_PER_UPDATE, ranks.data_parallel):
            parts = steps[start : start + ranks.data_parallel]
            ranks.spread(replica, "accumulate", [(part, {}, SECTION, 0.8) for part in parts])
        norms.append(ranks.call(replica, "close", 2 * STEPS_PER_UPDATE, CLIP_NORM).grad_norm)
    named = ranks.call(replica, "export")
    moments, _ = ranks.call(replica, "export_optimizer")
    return {**named, **moments, "norms": torch.tensor(norms, dtype=torch.float64)}


def step_paths(update: int, index: int) -> list[TargetPath]:
    """Make the paths of two executions: a tree, and a single path."""
    seed = 100 * update + 10 * index
    rng = np.random.default_rng(seed)
    return [
        *paths_of(random_nodes(rng, 8), rng, execution=f"{seed}"),
        random_path(seed + 1, execution=f"{seed + 1}", advantage=-0.5),
    ]


def main(rank: int, rendezvous: str, tensor_parallel: int, tied: bool, dtype: str, folder: Path) -> None:
    ranks = Ranks(rank, 2, rendezvous, tensor_parallel, torch.device("cpu"))
    result = train(ranks, f"{folder}/model.safetensors", tied=tied, dtype=dtype)
    save_file(result, folder / "result.safetensors")
