"""A token is a function of (logits, seed, position), and its distribution is the model's."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_workers.engine.sampling import Draw, sample
from gyre.contracts.engine import SamplingParams

VOCAB = 12


def draw(position: int = 0, **params: object) -> Draw:
    return Draw(SamplingParams.model_validate(params), position)


def row(seed: int) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


seeds = st.integers(0, 2**63 - 1)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-7, 1e-3, 0.5, 1.0, 3.0]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 1.0]),
    top_k=st.sampled_from([-1, 1, 3, VOCAB, 1000]),
    sampling_seed=seeds,
)
draws = st.builds(Draw, params, st.integers(0, 100_000))


@settings(deadline=None)
@given(st.lists(st.tuples(draws, st.integers(0, 50)), min_size=1, max_size=6))
def test_batch_changes_nothing(batch: list[tuple[Draw, int]]) -> None:
    logits = torch.stack([row(seed) for _, seed in batch])
    tokens, logprobs = sample(logits, [d for d, _ in batch])
    alone = [sample(row(seed)[None], [d]) for d, seed in batch]
    assert tokens == [t[0] for t, _ in alone]
    assert logprobs == pytest.approx([p[0] for _, p in alone], abs=1e-6)


@settings(deadline=None)
@given(draws, st.integers(0, 50))
def test_token_is_allowed_and_logprob_is_before_truncation(which: Draw, seed: int) -> None:
    logits = row(seed)
    (token,), (logprob,) = sample(logits[None], [which])
    temperature = 1.0 if which.greedy else which.params.temperature
    expected = torch.log_softmax(logits.double() / temperature, -1)
    assert logprob == pytest.approx(expected[token].item(), abs=1e-4, rel=1e-5)
    order = logits.argsort(descending=True).tolist()
    rank = order.index(token)
    if which.greedy:
        assert rank == 0
        return
    kept = VOCAB if which.params.top_k == -1 else min(which.params.top_k, VOCAB)
    assert rank < kept
    within = torch.softmax(expected[order[:kept]], -1)
    assert rank == 0 or within[:rank].sum() < which.params.top_p + 1e-6


def test_distribution_is_the_softmax() -> None:
    """Chi-square test over positions and seeds; at 11 degrees of freedom the 0.9999 quantile is 37.4."""
    count, logits = 20_000, row(1)
    expected = torch.softmax(logits / 1.3, -1) * count
    for vary in ("position", "seed"):
        chosen = [
            draw(i if vary == "position" else 9, sampling_seed=i if vary == "seed" else 9, temperature=1.3)
            for i in range(count)
        ]
        tokens, _ = sample(logits.expand(count, VOCAB), chosen)
        seen = torch.bincount(torch.tensor(tokens), minlength=VOCAB)
        assert ((seen - expected) ** 2 / expected).sum() < 37.4


def test_neighbouring_positions_are_independent() -> None:
    count = 20_000
    tokens, _ = sample(torch.zeros(count, 2), [draw(i, sampling_seed=3) for i in range(count)])
    values = torch.tensor(tokens).double() * 2 - 1
    # The mean of count - 1 products of independent signs has a standard error of 1 / sqrt(count).
    assert abs((values[1:] * values[:-1]).mean().item()) < 4 / math.sqrt(count)


def test_noise_is_splitmix64() -> None:
    """Compare with a plain-integer reference of the published generator."""

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    golden = 0x9E3779B97F4A7C15
    seed, position = 2**62 + 12345, 77
    state = mix(((mix((seed + golden) % 2**64) ^ position) + golden) % 2**64)
    uniform = [((mix((state + (i + 1) * golden) % 2**64) >> 11) + 0.5) / 2**53 for i in range(VOCAB)]
    expected = max(range(VOCAB), key=lambda i: -math.log(-math.log(uniform[i])))
    assert sample(torch.zeros(1, VOCAB), [draw(position, sampling_seed=seed)])[0] == [expected]


def test_top_p_keeps_the_token_that_crosses_the_bound() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    found = {sample(logits[None], [draw(i, sampling_seed=1, top_p=0.6)])[0][0] for i in range(200)}
    assert found == {0, 1}
