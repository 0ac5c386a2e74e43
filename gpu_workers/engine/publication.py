"""Taking a published policy version: fence, order, pull, swap."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from gpu_workers.engine.load_weights import WeightPuller, fuse
from gpu_workers.engine.scheduler import Scheduler
from gyre.contracts.engine import PullWeights
from gyre.contracts.errors import EngineFailed, Fenced

SWAP_S = 60.0
"""A swap waits for one scheduler step."""


@dataclass(frozen=True, slots=True)
class _Taken:
    version: int
    sha256: str
    num_bytes: int


class Publication:
    """Serves ``/pull_weights``, one at a time; requests keep being served while a pull runs."""

    def __init__(self, scheduler: Scheduler, source: WeightPuller, *, epoch: int) -> None:
        self._scheduler, self._source, self._epoch = scheduler, source, epoch
        self._lock = asyncio.Lock()
        self._taken: _Taken | None = None
        """None until the first pull: the checksum of the weights on disk is not known."""

    async def take(self, request: PullWeights) -> dict[str, Any]:
        """``{version, sha256, num_bytes, seconds}``; asking again for the version that is served is free.

        Raises Fenced for another epoch, an older version, or other weights under the served version, and
        TransferFailed, with the served weights unharmed, when what was pulled is not what was announced.
        """
        if request.epoch != self._epoch:
            raise Fenced(f"this engine runs epoch {self._epoch}, the command is of epoch {request.epoch}")
        async with self._lock:
            started = time.monotonic()
            if not self._serves(request):
                self._taken = await asyncio.to_thread(self._pull_and_swap, request)
            assert self._taken is not None
            seconds = time.monotonic() - started
        taken = self._taken
        return {
            "version": taken.version,
            "sha256": taken.sha256,
            "num_bytes": taken.num_bytes,
            "seconds": seconds,
        }

    def _serves(self, request: PullWeights) -> bool:
        """Whether the announced weights are the served ones. Raises Fenced if they may not follow them."""
        wanted, served = request.reference, self._scheduler.version
        if wanted.version < served:
            raise Fenced(f"version {wanted.version} is older than version {served}, which is served")
        if wanted.version > served or self._taken is None:
            return False
        if wanted.sha256 != self._taken.sha256:
            raise Fenced(f"version {served} is served with sha256 {self._taken.sha256}, not {wanted.sha256}")
        return True

    def _pull_and_swap(self, request: PullWeights) -> _Taken:
        pulled = self._source.pull(request.reference)
        model = self._scheduler.model
        weights = fuse(model.shape, pulled.tensors, dtype=model.dtype, device=model.device)
        swap = self._scheduler.swap(weights, pulled.version, request.mode)
        try:
            swap.result(timeout=SWAP_S)
        except TimeoutError:
            # Cancelled, so that it cannot happen after the caller was told that it did not.
            if swap.cancel():
                raise EngineFailed(f"the scheduler did not swap the weights within {SWAP_S:g} s") from None
            swap.result(timeout=SWAP_S)
        return _Taken(pulled.version, pulled.sha256, pulled.num_bytes)
