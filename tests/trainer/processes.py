"""Ranks as processes: a fork server imports Megatron once, and each rank is forked from it."""

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from gpu_workers.trainer.ranks import ending_at_once
from gyre.host.ports import HOST, choose_port

WORLD_SIZE = 2
END_S = 60.0
"""Far below the 30 minutes of a command or collective, far above what a busy machine needs."""


def start_ranks(main: Callable[..., None], folder: Path, *arguments: Any) -> Sequence[BaseProcess]:
    """Start ``main(rank, rendezvous, *arguments)`` on each rank; its stderr goes to ``<rank>.log``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.trainer.rank", "tests.trainer.faulty"])
    shared = (f"{HOST}:{choose_port(set())}", *arguments)
    processes = [
        context.Process(target=_run, args=(main, folder / f"{rank}.log", rank, *shared), daemon=True)
        for rank in range(WORLD_SIZE)
    ]
    for process in processes:
        process.start()
    return processes


def run_ranks(main: Callable[..., None], folder: Path, *arguments: Any) -> tuple[list[int | None], list[str]]:
    """Return exit codes and stderr by rank; the code is None for a rank still running after ``END_S``."""
    processes = start_ranks(main, folder, *arguments)
    for process in processes:
        process.join(END_S)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes, [(folder / f"{rank}.log").read_text() for rank in range(WORLD_SIZE)]


def _run(main: Callable[..., None], log: Path, *arguments: Any) -> None:
    torch.set_num_threads(1)
    sys.stderr = log.open("w")
    with ending_at_once():
        main(*arguments)
