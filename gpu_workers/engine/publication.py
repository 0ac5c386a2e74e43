"""Publication of policy versions to the engine: fence, order, pull, swap."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from gpu_workers.engine.load_weights import WeightPuller, fuse
from gpu_workers.engine.scheduler import Scheduler
from gyre.contracts.engine import PullWeights
from gyre.contracts.errors import EngineFailed, Fenced

SWAP_S = 60.0
"""Limit on a swap, which waits for one scheduler step."""


@dataclass(frozen=True, slots=True)
class _AppliedVersion:
    version: int
    sha256: str
    num_bytes: int


class Publication:
    """Applies ``/pull_weights`` commands one at a time. Requests are sampled while a pull runs."""

    def __init__(self, scheduler: Scheduler, source: WeightPuller, *, epoch: int) -> None:
        self._scheduler, self._source, self._epoch = scheduler, source, epoch
        self._lock = asyncio.Lock()
        self._applied: _AppliedVersion | None = None
        """None until the first pull, because the checksum of the weights on disk is not known."""

    async def apply(self, request: PullWeights) -> dict[str, Any]:
        """Serve the announced version and return ``{version, sha256, num_bytes, seconds}``.

        A version that is already served is not pulled again. Raises Fenced for another epoch, an older
        version, or other weights under the served version. Raises TransferFailed when the pulled weights are
        not the announced ones; the engine then goes on serving the previous version.
        """
        if request.epoch != self._epoch:
            raise Fenced(f"this engine is of epoch {self._epoch}, the command of epoch {request.epoch}")
        async with self._lock:
            started = time.monotonic()
            if not self._serves(request):
                self._applied = await asyncio.to_thread(self._pull_and_swap, request)
            assert self._applied is not None
            seconds = time.monotonic() - started
        applied = self._applied
        return {
            "version": applied.version,
            "sha256": applied.sha256,
            "num_bytes": applied.num_bytes,
            "seconds": seconds,
        }

    def _serves(self, request: PullWeights) -> bool:
        """Return whether the announced weights are served. Raises Fenced for older or conflicting ones."""
        wanted, served = request.reference, self._scheduler.version
        if wanted.version < served:
            raise Fenced(f"version {wanted.version} is older than the served version {served}")
        if wanted.version > served or self._applied is None:
            return False
        if wanted.sha256 != self._applied.sha256:
            raise Fenced(
                f"version {served} is served with sha256 {self._applied.sha256}, not {wanted.sha256}"
            )
        return True

    def _pull_and_swap(self, request: PullWeights) -> _AppliedVersion:
        pulled = self._source.pull(request.reference)
        model = self._scheduler.model
        weights = fuse(model.shape, pulled.tensors, dtype=model.dtype, device=model.device)
        swap = self._scheduler.swap(weights, pulled.version, request.mode)
        try:
            swap.result(timeout=SWAP_S)
        except TimeoutError:
            # Cancelled, so that the swap cannot happen after its failure was reported.
            if swap.cancel():
                raise EngineFailed(f"the scheduler did not swap the weights within {SWAP_S:g} s") from None
            swap.result(timeout=SWAP_S)
        return _AppliedVersion(pulled.version, pulled.sha256, pulled.num_bytes)
