"""A cache of KV by token prefix, shared between requests of one weight version."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_workers.engine.architecture import Architecture

BLOCK = 16
"""Tokens per block. Prefixes are shared in whole blocks."""
_FIRST_BLOCKS = 64

Key = tuple[int, tuple[int, ...]]
"""(uid of the previous block or 0 at the start, tokens of the block): equal keys mean equal prefixes."""


@dataclass(frozen=True, slots=True)
class _Block:
    uid: int
    index: int
    """Position of its KV in the pool."""


class PrefixCache:
    """At most ``max_blocks`` blocks in least-recently-used order.

    Every use of a path touches its blocks from the last to the first, so a block is never older than
    the blocks that follow it. The oldest block is therefore always a leaf and can be evicted alone.
    """

    def __init__(
        self, shape: Architecture, *, max_bytes: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._size = (shape.layers, 2, shape.kv_heads, BLOCK, shape.head_dim)
        self._dtype, self._device = dtype, device
        per_block = dtype.itemsize * shape.layers * 2 * shape.kv_heads * BLOCK * shape.head_dim
        self.max_blocks = max_bytes // per_block
        self._last_uid = 0
        self.clear()

    def clear(self) -> None:
        """Forget every prefix and free the memory."""
        self._blocks: OrderedDict[Key, _Block] = OrderedDict()
        self._free: list[int] = []
        self._pool = torch.empty((0, *self._size), dtype=self._dtype, device=self._device)

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def num_bytes(self) -> int:
        return self._pool.numel() * self._pool.element_size()

    def load(self, tokens: Sequence[int], row: Tensor) -> int:
        """Copy the longest known prefix into ``row`` and return its length in tokens.

        The last token is always left to compute, because its logits are needed. ``row`` is
        [layer, 2, kv_head, capacity, head_dim].
        """
        path = self._walk(tokens[: len(tokens) - 1])
        if not path:
            return 0
        length = len(path) * BLOCK
        found = self._pool[torch.tensor([block.index for block in path], device=self._device)]
        # [block, layer, 2, kv_head, BLOCK, dim] -> [layer, 2, kv_head, block * BLOCK, dim]
        row[:, :, :, :length] = found.permute(1, 2, 3, 0, 4, 5).flatten(3, 4)
        return length

    def store(self, tokens: Sequence[int], row: Tensor) -> None:
        """Store the KV of ``tokens``, which ``row`` holds, in whole blocks. Evicts the oldest blocks."""
        whole = min(len(tokens) // BLOCK, self.max_blocks) * BLOCK
        path = self._walk(tokens[:whole])
        start, parent = len(path) * BLOCK, path[-1].uid if path else 0
        if start == whole:
            return
        added: list[tuple[Key, _Block]] = []
        for at in range(start, whole, BLOCK):
            self._last_uid += 1
            key = (parent, tuple(tokens[at : at + BLOCK]))
            added.append((key, _Block(self._last_uid, self._take_slot())))
            parent = self._last_uid
        kv = row[:, :, :, start:whole].unflatten(3, (len(added), BLOCK)).permute(3, 0, 1, 2, 4, 5)
        self._pool[torch.tensor([block.index for _, block in added], device=self._device)] = kv
        for key, block in reversed(added):
            self._blocks[key] = block
        self._walk(tokens[:start])  # Touches the path again, so that it is not older than its new blocks.

    def _walk(self, tokens: Sequence[int]) -> list[_Block]:
        """Return the known blocks that ``tokens`` starts with, and touch them."""
        path: list[tuple[Key, _Block]] = []
        parent = 0
        for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
            key = (parent, tuple(tokens[at : at + BLOCK]))
            block = self._blocks.get(key)
            if block is None:
                break
            path.append((key, block))
            parent = block.uid
        for key, _ in reversed(path):
            self._blocks.move_to_end(key)
        return [block for _, block in path]

    def _take_slot(self) -> int:
        """Return a free slot. Grows the pool up to its limit, then evicts the oldest block."""
        old = len(self._pool)
        if not self._free and old < self.max_blocks:
            new = min(max(2 * old, _FIRST_BLOCKS), self.max_blocks)
            grown = torch.empty((new, *self._size), dtype=self._dtype, device=self._device)
            grown[:old] = self._pool
            self._pool = grown
            self._free.extend(range(new - 1, old - 1, -1))
        if not self._free:
            _, oldest = self._blocks.popitem(last=False)
            return oldest.index
        return self._free.pop()
