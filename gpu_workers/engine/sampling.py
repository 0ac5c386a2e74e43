"""Sampling as a function of (logits, seed, position): Gumbel-max with counter-based noise.

``argmax(log p + g)`` with independent standard Gumbel ``g`` is a draw from ``p``. The noise of token
``i`` is the i-th output of a SplitMix64 stream (Steele et al., OOPSLA 2014) that starts from the seed
and the position, so no token depends on the batch, on earlier draws or on the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gyre.contracts.engine import SamplingParams

_GREEDY_BELOW = 1e-6
"""Lower temperatures would overflow float32. They are greedy, as in SGLang."""
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Draw:
    """Everything but the logits that determines one token."""

    params: SamplingParams
    position: int
    """Index of the token in the whole sequence, prompt included."""

    @property
    def greedy(self) -> bool:
        return self.params.temperature < _GREEDY_BELOW


def sample(logits_BV: Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
    """Return token ids, and their log-probabilities after temperature and before top-k and top-p."""
    device = logits_BV.device
    temperature = torch.tensor([1.0 if d.greedy else d.params.temperature for d in draws], device=device)
    logprobs_BV = torch.log_softmax(logits_BV.float() / temperature[:, None], dim=-1)
    allowed_BV = _truncate(logprobs_BV, draws)
    noise_BV = _gumbel(draws, logits_BV.shape[1], device)
    tokens_B = torch.argmax(allowed_BV.double() + noise_BV, dim=-1)
    chosen_B = logprobs_BV.gather(1, tokens_B[:, None])[:, 0]
    return tokens_B.tolist(), chosen_B.tolist()


def _truncate(logprobs_BV: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Set log-probabilities outside each row's top-k, then outside its top-p, to minus infinity.

    Top-p keeps the fewest most likely tokens whose sum reaches ``top_p``, always including the first.
    """
    vocab = logprobs_BV.shape[1]
    top_k = [vocab if d.greedy or d.params.top_k < 1 else min(d.params.top_k, vocab) for d in draws]
    top_p = [1.0 if d.greedy else d.params.top_p for d in draws]
    if min(top_k) == vocab and min(top_p) >= 1.0:
        return logprobs_BV
    device = logprobs_BV.device
    sorted_BV, order_BV = torch.sort(logprobs_BV, dim=-1, descending=True, stable=True)
    rank_V = torch.arange(vocab, device=device)
    outside_k = rank_V[None] >= torch.tensor(top_k, device=device)[:, None]
    kept_BV = sorted_BV.masked_fill(outside_k, -torch.inf).softmax(-1)
    before_BV = kept_BV.cumsum(-1) - kept_BV
    limit_B1 = torch.tensor(top_p, device=device, dtype=kept_BV.dtype)[:, None]
    outside_p = (before_BV >= limit_B1) & (limit_B1 < 1.0) & (rank_V[None] > 0)
    return logprobs_BV.masked_fill((outside_k | outside_p).gather(1, order_BV.argsort(-1)), -torch.inf)


def _gumbel(draws: Sequence[Draw], vocab: int, device: torch.device) -> Tensor:
    """Return standard Gumbel noise [B, vocab] in float64; zero in greedy rows."""
    keys = [_signed(_mix(_mix(d.params.sampling_seed) ^ d.position)) for d in draws]
    key_B1 = torch.tensor(keys, dtype=torch.int64, device=device)[:, None]
    count_V = torch.arange(1, vocab + 1, dtype=torch.int64, device=device)
    bits_BV = _mix_tensor(key_B1 + count_V[None] * _signed(_GOLDEN))
    uniform_BV = (_shift(bits_BV, 11).double() + 0.5) * 2.0**-53
    greedy_B = torch.tensor([d.greedy for d in draws], device=device)
    return uniform_BV.log_().neg_().log_().neg_().masked_fill_(greedy_B[:, None], 0.0)


def _mix(value: int) -> int:
    """Return the first output of SplitMix64 from state ``value``."""
    z = (value + _GOLDEN) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def _mix_tensor(z: Tensor) -> Tensor:
    """Apply SplitMix64's output function on int64, whose products wrap as unsigned ones do."""
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, by: int) -> Tensor:
    """Shift right logically; int64's own shift is arithmetic."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _signed(value: int) -> int:
    """Return the int64 with the same bits, since torch has no unsigned arithmetic."""
    return value - 2**64 if value >= 2**63 else value
