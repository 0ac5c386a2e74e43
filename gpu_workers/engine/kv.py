"""The KV cache of running requests: one row per request, grown on demand."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_workers.engine.architecture import Architecture

_FIRST_TOKENS = 256
"""Initial capacity of a row, which doubles. Small, because most requests of a small run fit in it."""
_FIRST_ROWS = 4


class RunningCache:
    """Keys and values of all rows; ``data`` is [layer, 2 (key, value), row, kv_head, capacity, head_dim].

    Rows 0..n-1 belong to the running requests, so that a whole decode batch is a view and never a copy.
    Memory beyond a row's length is zero or stale but always finite: masked positions must not yield NaN.
    """

    def __init__(
        self,
        shape: Architecture,
        *,
        max_rows: int,
        max_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._shape = shape
        self._max_rows, self._max_tokens = max_rows, max_tokens
        self._dtype, self._device = dtype, device
        self.data = self._zeros(0, 0)

    def _zeros(self, rows: int, tokens: int) -> Tensor:
        size = (self._shape.layers, 2, rows, self._shape.kv_heads, tokens, self._shape.head_dim)
        if self._device.type != "cpu" or not math.prod(size):
            return torch.zeros(size, dtype=self._dtype, device=self._device)
        # torch.zeros writes every page. numpy uses calloc, so pages that no token reaches stay uncommitted.
        raw = np.zeros(math.prod(size) * self._dtype.itemsize, dtype=np.uint8)
        return torch.from_numpy(raw).view(self._dtype).view(size)

    @property
    def num_bytes(self) -> int:
        return self.data.numel() * self.data.element_size()

    def reserve(self, cached: Sequence[int], tokens: int) -> None:
        """Make room for a row of ``tokens`` tokens per entry; row i keeps its first ``cached[i]`` tokens."""
        rows, old_rows, old_tokens = len(cached), self.data.shape[2], self.data.shape[4]
        if rows <= old_rows and tokens <= old_tokens:
            return
        new_rows = _grown(old_rows, rows, _FIRST_ROWS, self._max_rows)
        new_tokens = _grown(old_tokens, tokens, _FIRST_TOKENS, self._max_tokens)
        grown = self._zeros(new_rows, new_tokens)
        for row, length in enumerate(cached):
            if length:
                grown[:, :, row, :, :length] = self.data[:, :, row, :, :length]
        self.data = grown

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of row ``source`` over row ``target``."""
        if length:
            self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]

    def row(self, row: int) -> Tensor:
        """Return a view of one row, [layer, 2, kv_head, capacity, head_dim]."""
        return self.data[:, :, row]

    def release(self) -> None:
        """Free all memory. Everything cached is lost."""
        self.data = self._zeros(0, 0)


def _grown(old: int, needed: int, first: int, limit: int) -> int:
    size = max(old, first)
    while size < needed:
        size *= 2
    return min(size, limit)
