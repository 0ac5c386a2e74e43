"""Ranks as processes: Megatron is imported once, by a server from which each rank is forked."""

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
"""Far below the limits of a command and of a collective, 30 minutes; far above what a busy machine needs."""


def start_ranks(main: Callable[..., None], folder: Path, *arguments: Any) -> Sequence[BaseProcess]:
    """Start ``main(rank, rendezvous, *arguments)`` on each rank; what it says is in ``<rank>.log``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.trainer.rank", "tests.trainer.faulty"])
    given = (f"{HOST}:{choose_port(set())}", *arguments)
    processes = [
        context.Process(target=_run, args=(main, folder / f"{rank}.log", rank, *given), daemon=True)
        for rank in range(WORLD_SIZE)
    ]
    for process in processes:
        process.start()
    return processes


def run_ranks(main: Callable[..., None], folder: Path, *arguments: Any) -> tuple[list[int | None], list[str]]:
    """Exit codes and what was said, by rank; None for a rank that still waits after a minute."""
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
