"""One process a rank: the process groups, and how rank 0 makes every rank do the same thing.

Commands travel through the process group's store, not through collectives: a follower can wait there
for hours in short waits, and a rank that fails can say so instead of leaving the others in a collective.
"""

import pickle
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state
from torch import device as Device

from gpu_workers.trainer.device import collective_backend
from gyre.contracts.errors import TrainerFailed

WAIT = timedelta(seconds=30)
"""One wait of a follower; it waits again as long as rank 0's store answers."""
ANSWER = timedelta(minutes=30)
"""Longest any one command may take on a follower."""


class Ranks:
    """The process groups of one trainer. ``tensor_parallel`` must divide ``world_size``."""

    def __init__(self, rank: int, world_size: int, rendezvous: str, tensor_parallel: int, on: Device) -> None:
        self.rank, self.world_size, self.tensor_parallel = rank, world_size, tensor_parallel
        self._store = _store(rank, world_size, rendezvous)
        dist.init_process_group(
            collective_backend(on), store=self._store, rank=rank, world_size=world_size, timeout=ANSWER
        )
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor_parallel)
        self._next = 0

    @property
    def data_parallel(self) -> int:
        return self.world_size // self.tensor_parallel

    def call(self, target: object, method: str, *arguments: Any) -> Any:
        """Run ``target.method(*arguments)`` on every rank; returns rank 0's result."""
        return self.spread(target, method, [arguments] * self.data_parallel)[0]

    def spread(self, target: object, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run a method with other arguments on each data-parallel replica; returns a result of each.

        Raises TrainerFailed if a follower failed or did not answer.
        """
        number, self._next = self._next, self._next + 1
        if self.world_size > 1:
            self._store.set(f"command/{number}", pickle.dumps((method, list(arguments))))
        results = [getattr(target, method)(*arguments[0])]
        followers = range(1, self.world_size)
        answers = {rank: self._answer(number, rank) for rank in followers}
        results += [answers[rank] for rank in followers if rank % self.tensor_parallel == 0]
        if self.world_size > 1:
            self._store.delete_key(f"command/{number}")
        return results

    def follow(self, target: object) -> None:
        """Do what rank 0 says until its store is gone."""
        for number in range(1 << 62):
            method, arguments = pickle.loads(self._wait(f"command/{number}"))
            replica = self.rank // self.tensor_parallel
            try:
                answer = (True, getattr(target, method)(*arguments[replica]))
            except Exception as error:
                answer = (False, f"rank {self.rank}: {type(error).__name__}: {error}")
            self._store.set(f"answer/{number}/{self.rank}", pickle.dumps(answer))

    def _wait(self, key: str) -> bytes:
        while True:
            try:
                self._store.wait([key], WAIT)
            except dist.DistStoreError:  # nothing yet
                continue
            except dist.DistNetworkError as error:
                raise SystemExit(f"rank {self.rank}: rank 0 is gone: {error}") from None
            return self._store.get(key)

    def _answer(self, number: int, rank: int) -> Any:
        key = f"answer/{number}/{rank}"
        try:
            self._store.wait([key], ANSWER)
        except dist.DistStoreError:
            raise TrainerFailed(f"rank {rank} did not answer within {ANSWER}") from None
        done, value = pickle.loads(self._store.get(key))
        self._store.delete_key(key)
        if not done:
            raise TrainerFailed(value)
        return value


def _store(rank: int, world_size: int, rendezvous: str) -> Any:
    stores: Any = dist  # torch's type stubs do not name its stores
    if world_size == 1:
        return stores.HashStore()
    host, _, port = rendezvous.rpartition(":")
    return stores.TCPStore(host, int(port), world_size, is_master=rank == 0, timeout=timedelta(minutes=2))
