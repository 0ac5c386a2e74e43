"""Scripts for two ranks, one of which may fail."""

import os
import signal
from collections.abc import Sequence

import torch

from gpu_workers.trainer.ranks import Ranks
from gyre.contracts.errors import TrainerFailed


class Faulty:
    """The commands of these scripts; ``ranks`` names the ranks on which a command fails."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def reduce(self, ranks: Sequence[int] = ()) -> float:
        """Join a collective, unless this rank fails before it."""
        if self._rank in ranks:
            raise RuntimeError("no memory left")
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        return total.item()

    def refuse(self, ranks: Sequence[int]) -> None:
        if self._rank in ranks:
            raise TrainerFailed("the gradient norm is nan")

    def echo(self, sent: bytes) -> bytes:
        return sent

    def die(self, ranks: Sequence[int]) -> None:
        if self._rank in ranks:
            os.kill(os.getpid(), signal.SIGKILL)


def main(rank: int, rendezvous: str, method: str, failing: Sequence[int]) -> None:
    """Reduce, refuse on both ranks, reduce again; then run ``method``, which fails on ``failing``."""
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


def echo_large(rank: int, rendezvous: str) -> None:
    """Send more than torch's store takes at once to two replicas and back."""
    ranks = Ranks(rank, 2, rendezvous, 1, torch.device("cpu"))
    target = Faulty(rank)
    if rank:
        ranks.follow(target)
    sent = [bytes([replica]) * (9 << 20) for replica in range(2)]
    assert ranks.spread(target, "echo", [(part,) for part in sent]) == sent
    assert ranks.call(target, "echo", b"") == b""


def agree(ranks: Ranks, target: Faulty) -> None:
    assert ranks.call(target, "reduce") == 2
