"""One process per rank: the process groups, and the commands by which rank 0 keeps all ranks in step.

Commands travel through the process group's store, not through collectives: there a follower can wait for
hours, in short waits, and a rank can answer that it refused.

A refusal is a GyreError that depends only on state which is equal on all ranks, so it leaves them in step.
Any other failure on one rank would leave the others in a collective that it never joins, so it ends the
rank's process: SystemExit passes every handler of Exception, and ``ending_at_once`` exits without
finalization. The supervisor sees the process end, and gloo's peers see a closed connection.
"""

import itertools
import os
import sys
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state
from torch import device as Device

from gpu_workers.trainer import store_messages
from gpu_workers.trainer.device import collective_backend
from gyre.contracts.errors import GyreError

FOLLOWER_WAIT = timedelta(seconds=30)
"""One wait of a follower for a command; it is repeated as long as rank 0's store answers."""
COMMAND_LIMIT = timedelta(minutes=30)
"""Longest time a command may take on a follower."""
REFUSAL_LIMIT = timedelta(seconds=20)
"""Longest time a follower may take to refuse what rank 0 refused: all refuse at the same point."""


@dataclass(frozen=True)
class _Outcome:
    """A rank's result of a command, or the reason why it refused."""

    value: Any = None
    refusal: str | None = None


@contextmanager
def ending_at_once() -> Generator[None]:
    """Print any exception that leaves the block and exit with code 1 at once.

    A normal exit would destroy the process groups, which may wait for ranks that wait for this one.
    """
    try:
        yield
    except (Exception, SystemExit):
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


class Ranks:
    """The process groups of one trainer. ``tensor_parallel`` must divide ``world_size``."""

    def __init__(self, rank: int, world_size: int, rendezvous: str, tensor_parallel: int, on: Device) -> None:
        self.rank, self.world_size, self.tensor_parallel = rank, world_size, tensor_parallel
        self._store = _store(rank, world_size, rendezvous)
        dist.init_process_group(
            collective_backend(on), store=self._store, rank=rank, world_size=world_size, timeout=COMMAND_LIMIT
        )
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor_parallel)
        self._next = 0

    @property
    def data_parallel(self) -> int:
        """Number of replicas of the model."""
        return self.world_size // self.tensor_parallel

    def call(self, target: object, method: str, *arguments: Any) -> Any:
        """Run ``target.method(*arguments)`` on every rank. Returns rank 0's result."""
        return self.spread(target, method, [arguments] * self.data_parallel)[0]

    def spread(self, target: object, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run a method on every rank with each replica's own arguments. Returns one result per replica.

        Raises rank 0's refusal if every rank refused, and SystemExit if the ranks are out of step.
        """
        if self.world_size == 1:
            return [getattr(target, method)(*arguments[0])]
        number, self._next = self._next, self._next + 1
        sent = [f"command/{number}/{replica}" for replica in range(self.data_parallel)]
        for key, own_arguments in zip(sent, arguments, strict=True):
            store_messages.send(self._store, key, (method, own_arguments))
        refusal: GyreError | None = None
        try:
            own = _Outcome(getattr(target, method)(*arguments[0]))
        except GyreError as error:
            own, refusal = _Outcome(refusal=str(error)), error
        except Exception as error:
            raise SystemExit(f"rank 0: {method}: {type(error).__name__}: {error}") from error
        limit = COMMAND_LIMIT if refusal is None else REFUSAL_LIMIT
        outcomes = [own, *(self._answer(number, rank, limit) for rank in range(1, self.world_size))]
        store_messages.forget(self._store, sent)
        refusals = {rank: o.refusal for rank, o in enumerate(outcomes) if o.refusal is not None}
        if 0 < len(refusals) < len(outcomes):  # the ranks hold different state from here on
            first = next(iter(refusals.values()))
            raise SystemExit(f"{method}: only ranks {sorted(refusals)} refused: {first}")
        if refusal is not None:
            raise refusal
        return [outcome.value for outcome in outcomes[:: self.tensor_parallel]]

    def follow(self, target: object) -> None:
        """Run rank 0's commands. Raises SystemExit when rank 0's store is gone or a command fails here."""
        replica = self.rank // self.tensor_parallel
        for number in itertools.count():
            method, arguments = self._wait(f"command/{number}/{replica}")
            key = f"answer/{number}/{self.rank}"
            try:
                outcome = _Outcome(getattr(target, method)(*arguments))
            except GyreError as error:
                outcome = _Outcome(refusal=str(error))
            except Exception as error:
                sentence = f"rank {self.rank}: {method}: {type(error).__name__}: {error}"
                # Rank 0 may be waiting for this answer already; without one it would wait for the limit.
                store_messages.send(self._store, key, sentence)
                raise SystemExit(sentence) from error
            store_messages.send(self._store, key, outcome)

    def _wait(self, key: str) -> Any:
        while True:
            try:
                self._store.wait([key], FOLLOWER_WAIT)
            except dist.DistStoreError:  # no command yet
                continue
            except dist.DistNetworkError as error:
                raise SystemExit(f"rank {self.rank}: rank 0 is gone: {error}") from None
            return store_messages.receive(self._store, key)

    def _answer(self, number: int, rank: int, limit: timedelta) -> _Outcome:
        key = f"answer/{number}/{rank}"
        try:
            self._store.wait([key], limit)
        except dist.DistStoreError:
            raise SystemExit(f"rank {rank} did not answer within {limit}") from None
        found: _Outcome | str = store_messages.receive(self._store, key)
        store_messages.forget(self._store, [key])
        if isinstance(found, str):
            raise SystemExit(found)
        return found


def _store(rank: int, world_size: int, rendezvous: str) -> Any:
    """Open the store that all ranks share; rank 0's process serves it."""
    stores: Any = dist  # torch's type stubs do not name its stores
    if world_size == 1:
        return stores.HashStore()
    host, _, port = rendezvous.rpartition(":")
    # The timeout bounds how long the ranks wait for each other to start.
    return stores.TCPStore(host, int(port), world_size, is_master=rank == 0, timeout=timedelta(minutes=2))
