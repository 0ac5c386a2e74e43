"""Attention of one rectangle of queries and keys, with its log-sum-exp: fused where torch has a kernel.

Shapes: query, out and their gradients [B, R, L, D], key and value [B, 1, N, D], log-sum-exp [B, R, L].
``causal`` requires L == N. On CUDA, torch's fused kernels that return a log-sum-exp take 16-bit types only;
wider types, which only tests use, take the plain kernels.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Forward = Callable[[Tensor, Tensor, Tensor, bool, float], tuple[Tensor, Tensor]]
Backward = Callable[
    [Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool, float], tuple[Tensor, Tensor, Tensor]
]

QUERIES_AT_ONCE = 1024
"""Queries per block of the plain kernels, which hold the block's whole matrix of scores."""


def forward_kernel(query: Tensor) -> Forward:
    """Return the kernel for a query's device and type.

    (query, key, value, causal, scale) -> (out, log-sum-exp).
    """
    if query.device.type == "cpu":
        return _cpu_forward
    return _cuda_forward if query.element_size() == 2 else plain_forward


def backward_kernel(query: Tensor) -> Backward:
    """Return the kernel for a query's device and type.

    (gradient, query, key, value, out, log-sum-exp, causal, scale) -> gradients of query, key, value.
    """
    if query.device.type == "cpu":
        return _cpu_backward
    return _cuda_backward if query.element_size() == 2 else plain_backward


def _cpu_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)


def _cpu_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, lse, 0.0, causal, scale=scale
    )


def _cuda_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    found = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
    return found[0], found[1]


def _cuda_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    # Dense batches have no sequence offsets (None, None); without dropout the random state is not read.
    state = torch.empty(2, dtype=torch.uint64, device=q.device)
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        grad, q, k, v, out, lse.contiguous(), None, None, q.shape[2], k.shape[2], 0.0, causal, state, state,
        scale=scale,
    )  # fmt: skip


def plain_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Compute attention by its definition, a block of queries at a time."""
    outs, lses = list[Tensor](), list[Tensor]()
    for start in range(0, q.shape[2], QUERIES_AT_ONCE):
        scores = _scores(q[:, :, start : start + QUERIES_AT_ONCE], k, start if causal else None, scale)
        lses.append(scores.logsumexp(-1))
        outs.append((scores - lses[-1][..., None]).exp() @ v)
    return torch.cat(outs, 2), torch.cat(lses, 2)


def plain_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute gradients by d score = p (d p - sum(d out * out)), with p = exp(score - log-sum-exp)."""
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for start in range(0, q.shape[2], QUERIES_AT_ONCE):
        own = slice(start, start + QUERIES_AT_ONCE)
        p = (_scores(q[:, :, own], k, start if causal else None, scale) - lse[:, :, own, None]).exp()
        delta = (grad[:, :, own] * out[:, :, own]).sum(-1, keepdim=True)
        d_scores = p * (grad[:, :, own] @ v.transpose(-1, -2) - delta) * scale
        dq[:, :, own] = d_scores @ k
        dk += (d_scores.transpose(-1, -2) @ q[:, :, own]).sum(1, keepdim=True)
        dv += (p.transpose(-1, -2) @ grad[:, :, own]).sum(1, keepdim=True)
    return dq, dk, dv


def _scores(q: Tensor, k: Tensor, first: int | None, scale: float) -> Tensor:
    """Compute scaled scores [B, R, L, N].

    ``first`` is the index of the first query among the keys, where each query sees keys up to its own only.
    """
    scores = q @ k.transpose(-1, -2) * scale
    if first is None:
        return scores
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1 + first)
    return scores.masked_fill(later, float("-inf"))
