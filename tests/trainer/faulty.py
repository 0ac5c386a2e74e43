"""Ranks of which one fails."""

import os
import signal
from collections.abc import Sequence

import torch

from gpu_workers.trainer.ranks import Ranks
from gyre.contracts.errors import TrainerFailed


class Faulty:
    """What ranks are told to do here; ``ranks`` names those that fail."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def reduce(self, ranks: Sequence[int] = ()) -> float:
        """A collective that a rank which fails does not join."""
        if self._rank in ranks:
            raise RuntimeError("no memory left")
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        return total.item()

    def refuse(self, ranks: Sequence[int]) -> None:
        if self._rank in ranks:
            raise TrainerFailed("the gradient norm is nan")

    def echo(self, said: bytes) -> bytes:
        return said

    def die(self, ranks: Sequence[int]) -> None:
        if self._rank in ranks:
            os.kill(os.getpid(), signal.SIGKILL)


def main(rank: int, rendezvous: str, method: str, failing: Sequence[int]) -> None:
    """Agree, refuse together, agree again; then fail as told."""
    ranks = Ranks(rank, 2, rendezvous, 1, torch.device("cpu"))
    target = Faulty(rank)
    if rank:
        ranks.follow(target)
    agree(ranks, target)
    try:
        ranks.call(target, "refuse", range(2))
    except TrainerFailed:
        agree(ranks, target)
        ranks.call(target, method, failing)


def say_much(rank: int, rendezvous: str) -> None:
    """More than torch's store takes at once, to two replicas and back."""
    ranks = Ranks(rank, 2, rendezvous, 1, torch.device("cpu"))
    target = Faulty(rank)
    if rank:
        ranks.follow(target)
    said = [(bytes([replica]) * (9 << 20),) for replica in range(2)]
    assert ranks.spread(target, "echo", said) == [only for (only,) in said]
    assert ranks.call(target, "echo", b"") == b""


def agree(ranks: Ranks, target: Faulty) -> None:
    assert ranks.call(target, "reduce") == 2
