"""One process a rank: the process groups, and how rank 0 makes every rank do the same thing.

Commands travel through the process group's store, not through collectives: a follower can wait there
for hours in short waits, and a rank can answer that it refused.

A refusal (a GyreError, which depends only on what all ranks hold alike) leaves the ranks in step. Any
other failure on one rank leaves the others in a collective that nobody will join, so it ends the rank:
SystemExit passes every handler of Exception, and ``ending_at_once`` turns it into the death of the
process, which gloo's peers see as a closed connection and the supervisor sees whatever the backend.
"""

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

WAIT = timedelta(seconds=30)
"""One wait of a follower; it waits again as long as rank 0's store answers."""
ANSWER = timedelta(minutes=30)
"""Longest any one command may take on a follower."""
REFUSAL = timedelta(seconds=20)
"""Longest a follower may take to refuse what rank 0 refused: they decide alike, at the same point."""


@dataclass(frozen=True)
class _Outcome:
    """What one rank made of a command."""

    value: Any = None
    refusal: str | None = None


@contextmanager
def ending_at_once() -> Generator[None]:
    """Whatever escapes the block is printed and ends this process with code 1, without finalisation.

    The interpreter's own end would destroy the process groups, and that may wait for ranks that wait.
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

        Raises what rank 0 refused with if every rank refused; SystemExit if the ranks are out of step.
        """
        if self.world_size == 1:
            return [getattr(target, method)(*arguments[0])]
        number, self._next = self._next, self._next + 1
        sent = [f"command/{number}/{replica}" for replica in range(self.data_parallel)]
        for key, given in zip(sent, arguments, strict=True):
            store_messages.send(self._store, key, (method, given))
        refusal: GyreError | None = None
        try:
            own = _Outcome(getattr(target, method)(*arguments[0]))
        except GyreError as error:
            own, refusal = _Outcome(refusal=str(error)), error
        except Exception as error:
            raise SystemExit(f"rank 0: {method}: {type(error).__name__}: {error}") from error
        limit = ANSWER if refusal is None else REFUSAL
        outcomes = [own, *(self._answer(number, rank, limit) for rank in range(1, self.world_size))]
        store_messages.forget(self._store, sent)
        _check_in_step(method, outcomes)
        if refusal is not None:
            raise refusal
        return [outcome.value for outcome in outcomes[:: self.tensor_parallel]]

    def follow(self, target: object) -> None:
        """Do what rank 0 says. Ends with SystemExit when its store is gone or a command failed here."""
        replica = self.rank // self.tensor_parallel
        for number in range(1 << 62):
            method, arguments = self._wait(f"command/{number}/{replica}")
            key = f"answer/{number}/{self.rank}"
            try:
                outcome = _Outcome(getattr(target, method)(*arguments))
            except GyreError as error:
                outcome = _Outcome(refusal=str(error))
            except Exception as error:
                sentence = f"rank {self.rank}: {method}: {type(error).__name__}: {error}"
                store_messages.send(self._store, key, sentence)  # rank 0 may be waiting here already
                raise SystemExit(sentence) from error
            store_messages.send(self._store, key, outcome)

    def _wait(self, key: str) -> Any:
        while True:
            try:
                self._store.wait([key], WAIT)
            except dist.DistStoreError:  # nothing yet
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


def _check_in_step(method: str, outcomes: Sequence[_Outcome]) -> None:
    """Ranks of which some did a command and some refused it hold different things from then on."""
    refusals = {rank: o.refusal for rank, o in enumerate(outcomes) if o.refusal is not None}
    if 0 < len(refusals) < len(outcomes):
        raise SystemExit(f"{method}: only ranks {sorted(refusals)} refused: {next(iter(refusals.values()))}")


def _store(rank: int, world_size: int, rendezvous: str) -> Any:
    stores: Any = dist  # torch's type stubs do not name its stores
    if world_size == 1:
        return stores.HashStore()
    host, _, port = rendezvous.rpartition(":")
    return stores.TCPStore(host, int(port), world_size, is_master=rank == 0, timeout=timedelta(minutes=2))
