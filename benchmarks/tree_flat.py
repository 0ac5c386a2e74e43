"""Core attention of flat training: torch's own, causal within each path of the row."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_workers.trainer.attention import TreeParams


class SegmentAttention(nn.Module):
    """Drop-in for the product's core attention, for rows of separate paths."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.scale = config.kv_channels**-0.5

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: TreeParams, **__: Any
    ) -> Tensor:
        """Attend with query [S, 1, H, D], key and value [S, 1, G, D] (G divides H); return [S, 1, H * D]."""
        layout = packed_seq_params.layout
        assert layout is not None
        assert not layout.blocks, "these paths share something"
        lengths = [stop - start for start, stop in layout.chains]
        parts = (tensor.permute(1, 2, 0, 3).split(lengths, dim=2) for tensor in (query, key, value))
        mixed = [
            F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=True)
            for q, k, v in zip(*parts, strict=True)
        ]
        return torch.cat(mixed, dim=2).permute(2, 0, 1, 3).flatten(2)
