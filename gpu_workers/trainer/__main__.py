"""``python -m gpu_workers.trainer --boot FILE``: one rank of a cell's trainer."""

import ctypes
import os
import signal
import sys
from pathlib import Path

import torch
from transformers import Qwen3Config

from db.object_store import BlobStore
from db.session import connect
from db.training import Claimant
from gpu_workers.trainer.device import resolve
from gpu_workers.trainer.megatron_model import check_architecture
from gpu_workers.trainer.ranks import Ranks, ending_at_once
from gpu_workers.trainer.replica import Replica
from gpu_workers.trainer.server import CommandServer
from gpu_workers.trainer.trainer import Trainer, read_config
from gyre.contracts.boot import TrainerBoot, read_boot
from gyre.contracts.ids import CellId
from gyre.settings import Services

PR_SET_PDEATHSIG = 1
NUM_THREADS = 1
"""Of torch on the CPU: engine, harnesses and evaluators share its cores, and results repeat."""


def main() -> None:
    boot = read_boot(TrainerBoot, sys.argv)
    die_with_parent()
    with ending_at_once():
        run_rank(boot)


def die_with_parent() -> None:
    """A trainer whose supervisor is gone must not touch Postgres any more."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # it died before the call
        raise SystemExit("the supervisor is gone")


def run_rank(boot: TrainerBoot) -> None:
    """Serve commands on rank 0, follow it on the others. Does not return."""
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
        database.dispose()
        ranks.follow(replica)
    claimant = Claimant(CellId(boot.cell), boot.epoch)
    trainer = Trainer(database, BlobStore(services, database), ranks, replica, claimant)
    CommandServer(trainer, boot.epoch, Path(boot.socket)).serve_forever()


if __name__ == "__main__":
    main()
