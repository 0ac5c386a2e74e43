"""Log-probabilities and entropy over a vocabulary that is sharded across tensor-parallel ranks.

Shapes: T targets, V the padded vocabulary, C the real columns of one rank's shard.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

ROWS_AT_ONCE = 512
"""Rows per temporary as wide as the logits; for a whole micro-step at once it would set the memory peak."""


@dataclass(frozen=True)
class ScoredTargets:
    """``logprobs`` and ``entropy`` in nats, both [T] with a graph."""

    logprobs: Tensor
    entropy: Tensor


def score_targets(logits: Tensor, targets: Tensor, temperature: float, vocab_size: int) -> ScoredTargets:
    """Compute log softmax(logits / temperature) at ``targets`` and its entropy, in float32 or better.

    ``logits`` [T, V / tp] are this rank's columns; global columns from ``vocab_size`` on are padding.
    ``targets`` [T] are global token ids. Results are equal on every rank.
    """
    first = parallel_state.get_tensor_model_parallel_rank() * logits.shape[-1]
    real = logits[:, : max(0, vocab_size - first)]
    found: Any = _Score.apply(real, targets - first, temperature)
    return ScoredTargets(*found)


class _Score(torch.autograd.Function):
    """Maps this rank's logits [T, C] and targets [T], relative to its first column, to ``ScoredTargets``.

    Backward needs no collective: with p and H over the whole vocabulary, d log p(t) / d logit_v is
    (1[v = t] - p_v) / temperature and d H / d logit_v is -p_v (log p_v + H) / temperature.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        highest = scaled.max(dim=-1).values
        _all_reduce(highest, torch.distributed.ReduceOp.MAX)
        shifted = scaled.sub_(highest[:, None])
        # A target on another rank contributes 0 here; the sum over ranks has the one real value.
        owned = (targets >= 0) & (targets < shifted.shape[-1])
        local = targets.clamp(0, shifted.shape[-1] - 1)
        chosen = shifted.gather(-1, local[:, None])[:, 0].masked_fill(~owned, 0.0)
        sums = torch.stack([chosen, *_totals(shifted)])
        _all_reduce(sums, torch.distributed.ReduceOp.SUM)
        chosen, total, weighted = sums
        log_total = total.log()
        entropy = log_total - weighted / total
        ctx.save_for_backward(shifted, log_total, entropy, local, owned)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        ctx.set_materialize_grads(False)  # an unused output then has the gradient None, not zeros
        return chosen - log_total, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        shifted, log_total, entropy, local, owned = ctx.saved_tensors
        of_logprob, of_entropy = (None if g is None else g[:, None] / ctx.temperature for g in gradients)
        found = torch.zeros_like(shifted)
        for rows in _row_chunks(len(shifted)):
            logprobs = shifted[rows] - log_total[rows, None]
            factor = 0.0 if of_logprob is None else of_logprob[rows]
            if of_entropy is not None:
                factor = factor + of_entropy[rows] * (logprobs + entropy[rows, None])
            found[rows] = -logprobs.exp_() * factor
        if of_logprob is not None:
            found.scatter_add_(-1, local[:, None], of_logprob * owned[:, None])
        return found.to(ctx.dtype), None, None


def _totals(shifted: Tensor) -> tuple[Tensor, Tensor]:
    """Compute sum_v exp(x_v) and sum_v exp(x_v) x_v over this rank's columns, both [T]."""
    total, weighted = shifted.new_empty(2, len(shifted))
    for rows in _row_chunks(len(shifted)):
        exponentials = shifted[rows].exp()
        total[rows] = exponentials.sum(-1)
        weighted[rows] = exponentials.mul_(shifted[rows]).sum(-1)
    return total, weighted


def _row_chunks(num_rows: int) -> Iterator[slice]:
    return (slice(start, start + ROWS_AT_ONCE) for start in range(0, num_rows, ROWS_AT_ONCE))


def _all_reduce(tensor: Tensor, how: Any) -> None:
    torch.distributed.all_reduce(tensor, how, group=parallel_state.get_tensor_model_parallel_group())
