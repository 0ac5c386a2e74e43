"""Log-probabilities and entropy over a vocabulary that is cut across tensor-parallel ranks."""

from dataclasses import dataclass

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region
from torch import Tensor


@dataclass(frozen=True)
class Scored:
    """``logprobs`` [T] with a graph, ``entropy`` [T] without one (nats)."""

    logprobs: Tensor
    entropy: Tensor


def score_targets(logits: Tensor, targets: Tensor, temperature: float) -> Scored:
    """log softmax(logits / temperature) at ``targets``, in float32 or better.

    ``logits`` [T, V / tp] of this rank, ``targets`` [T] global ids; equal results on every rank.
    """
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    highest = scaled.detach().max(dim=-1).values
    torch.distributed.all_reduce(
        highest, torch.distributed.ReduceOp.MAX, group=parallel_state.get_tensor_model_parallel_group()
    )
    shifted = scaled - highest[:, None]
    # Forward sums over the ranks, backward is the identity: each rank holds its own part of the graph.
    log_total = reduce_from_tensor_model_parallel_region(shifted.exp().sum(-1)).log()
    local = targets - parallel_state.get_tensor_model_parallel_rank() * logits.shape[-1]
    owned = (local >= 0) & (local < logits.shape[-1])
    picked = shifted.gather(-1, local.clamp(0, logits.shape[-1] - 1)[:, None])[:, 0]
    chosen = reduce_from_tensor_model_parallel_region(torch.where(owned, picked, 0.0))
    return Scored(chosen - log_total, _entropy(shifted.detach(), log_total.detach()))


def _entropy(shifted: Tensor, log_total: Tensor) -> Tensor:
    weighted = torch.special.xlogy(shifted.exp(), shifted.exp()).sum(-1)
    total = reduce_from_tensor_model_parallel_region(weighted)
    return log_total - total / log_total.exp()
