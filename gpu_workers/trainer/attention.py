"""Core attention over a packed row of trees: causal chains, and blocks of ancestors without a mask.

A token's softmax runs over its own chain and the blocks that contain it. A fused kernel computes each part
as (output, log-sum-exp), and the parts are merged: with l = log(exp(l1) + exp(l2)) the whole output is
exp(l1 - l) o1 + exp(l2 - l) o2. Backward needs no merge. A fused backward kernel restores its part's
probabilities as exp(score - l); given the merged output and the merged l, it returns exactly that part's
share of the gradient, and the shares add up (ring attention, arXiv 2310.01889). Shares in 16 bits are added
in 32: a shared prefix receives one share per branch, and flat training would add those in 32 bits too.

Shapes: S tokens in the row, H query heads, G key-value heads (G divides H), D channels per head.
"""

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor, nn

from gpu_workers.trainer.kernels import backward_kernel, forward_kernel
from gyre.trajectory.layout import Layout


@dataclass
class TreeParams(PackedSeqParams):
    """Carries a row's layout through Megatron to the core attention of every layer."""

    layout: Layout | None = None


class TreeAttention(nn.Module):
    """Megatron's core-attention module for rows of trees."""

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__()
        self.scale = config.kv_channels**-0.5

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: TreeParams, **__: Any
    ) -> Tensor:
        """Attend with query [S, 1, H, D], key and value [S, 1, G, D]; return [S, 1, H * D]."""
        q, k, v = query.squeeze(1), key.squeeze(1), value.squeeze(1)
        mixed: Any = _TreeAttention.apply(q, k, v, packed_seq_params.layout, self.scale)
        return mixed.flatten(1)[:, None]


class _TreeAttention(torch.autograd.Function):
    """Maps query [S, H, D], key and value [S, G, D] to [S, H, D].

    Saves these and one log-sum-exp per query and head for backward.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float) -> Tensor:
        mixed, groups = query.new_empty(query.shape, dtype=_sum_type(query, layout)), key.shape[1]
        q, k, v, out = (_grouped(tensor, groups) for tensor in (query, key, value, mixed))
        lse = q.new_empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32))
        kernel = forward_kernel(q)
        for own, seen in _parts(layout):
            causal = own == seen
            part, part_lse = kernel(q[:, :, own], k[:, :, seen], v[:, :, seen], causal, scale)
            if (
                causal
            ):  # chains come first and together cover every row, so blocks find something to merge with
                out[:, :, own], lse[:, :, own] = part, part_lse
            else:
                _merge(out[:, :, own], lse[:, :, own], part, part_lse)
        mixed = mixed.to(query.dtype)
        ctx.save_for_backward(query, key, value, mixed, lse)
        ctx.layout, ctx.scale = layout, scale
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mixed, lse = ctx.saved_tensors
        dtype = _sum_type(query, ctx.layout)
        # The chains assign every row of the query's gradient; key and value only ever receive shares.
        found = [
            torch.empty_like(query, dtype=dtype),
            *(torch.zeros_like(t, dtype=dtype) for t in (key, value)),
        ]
        whole = (gradients[0], query, key, value, mixed, *found)
        grad, q, k, v, out, dq, dk, dv = (_grouped(tensor, key.shape[1]) for tensor in whole)
        kernel = backward_kernel(q)
        for own, seen in _parts(ctx.layout):
            causal = own == seen
            inputs = (q[:, :, own], k[:, :, seen], v[:, :, seen], out[:, :, own], lse[:, :, own])
            part_q, part_k, part_v = kernel(grad[:, :, own], *inputs, causal, ctx.scale)
            if causal:
                dq[:, :, own] = part_q
            else:
                dq[:, :, own] += part_q
            dk[:, :, seen] += part_k
            dv[:, :, seen] += part_v
        return *(tensor.to(query.dtype) for tensor in found), None, None


def _sum_type(query: Tensor, layout: Layout) -> torch.dtype:
    """Return the dtype in which parts are added: at least 32 bits if there is more than one part."""
    return torch.promote_types(query.dtype, torch.float32) if layout.blocks else query.dtype


def _grouped(tensor: Tensor, groups: int) -> Tensor:
    """View [S, H, D] as [G, H / G, S, D]: to a kernel, each group is a sequence with one key head."""
    return tensor.unflatten(1, (groups, -1)).permute(1, 2, 0, 3)


def _parts(layout: Layout) -> list[tuple[slice, slice]]:
    """List (queries, keys) of the chains, where both are the same rows, and then of the blocks."""
    chains = [(slice(*chain), slice(*chain)) for chain in layout.chains]
    return chains + [(slice(b.start, b.stop), slice(b.first, b.last)) for b in layout.blocks]


def _merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merge a part into ``out`` and ``lse`` in place."""
    weight = torch.sigmoid(part_lse - lse)[..., None]
    out.lerp_(part.to(out.dtype), weight.to(out.dtype))
    torch.logaddexp(lse, part_lse, out=lse)
