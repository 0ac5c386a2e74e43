"""``python -m gpu_workers.trainer --boot FILE [--parent PID]``: one rank of a cell's trainer."""

import sys
from pathlib import Path

import torch
from transformers import Qwen3Config

from db.object_store import BlobStore
from db.session import connect
from db.training import Claimant
from gpu_workers.children import exit_with_parent
from gpu_workers.trainer.device import resolve
from gpu_workers.trainer.megatron_model import check_architecture
from gpu_workers.trainer.ranks import Ranks, ending_at_once
from gpu_workers.trainer.replica import Replica
from gpu_workers.trainer.server import CommandServer
from gpu_workers.trainer.trainer import Trainer, read_config
from gyre.contracts.boot import TrainerBoot, read_boot
from gyre.contracts.ids import CellId
from gyre.settings import Services

NUM_THREADS = 1
"""torch threads on the CPU: engine, harnesses and evaluators share its cores, and results are repeatable."""


def main() -> None:
    """Run the rank until its supervisor is gone.

    A trainer without a supervisor must stop working on the batch: the cell's next incarnation will redo it.
    Postgres is safe in any case, because every write is fenced by the epoch.
    """
    boot = read_boot(TrainerBoot, sys.argv)
    exit_with_parent(sys.argv)
    with ending_at_once():
        run_rank(boot)


def run_rank(boot: TrainerBoot) -> None:
    """Serve commands on rank 0, follow it on the other ranks. Does not return."""
    torch.set_num_threads(NUM_THREADS)
    services = Services.model_validate(boot.services)
    database = connect(services.postgres_dsn, pool_size=2)
    config = read_config(database, boot.run)
    device = resolve(config.cells.device)
    hf = Qwen3Config.from_pretrained(config.model.path, local_files_only=True)
    check_architecture(hf, config.cells.tensor_parallel)
    ranks = Ranks(boot.rank, boot.world_size, boot.rendezvous, config.cells.tensor_parallel, device)
    replica = Replica(hf, config.model.dtype, config.optimizer, device)
    if boot.rank > 0:
        database.dispose()  # only rank 0 uses Postgres
        ranks.follow(replica)
    claimant = Claimant(CellId(boot.cell), boot.epoch)
    trainer = Trainer(database, BlobStore(services, database), ranks, replica, claimant)
    CommandServer(trainer, boot.epoch, Path(boot.socket)).serve_forever()


if __name__ == "__main__":
    main()
