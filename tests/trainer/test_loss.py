"""The loss equals its definition, in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_workers.trainer import loss
from gyre.settings.runfile import LossSection

CAPPED, TRUNCATED = LossSection(form="capped"), LossSection(form="truncated")
ratios = st.lists(st.floats(-3, 3), min_size=1, max_size=12)
advantages = st.floats(-2, 2).filter(lambda a: abs(a) > 1e-3)


def gradient(
    log_ratio: list[float], owner: list[int], advantage: list[float], section: LossSection
) -> torch.Tensor:
    """Compute d loss / d logprobs."""
    logprobs = torch.full((len(log_ratio),), -2.0, dtype=torch.float64, requires_grad=True)
    behaviour = logprobs.detach() - torch.tensor(log_ratio, dtype=torch.float64)
    owners = torch.tensor(owner)
    advantage_E = torch.tensor(advantage, dtype=torch.float64)
    sums, counts = loss.execution_sums(logprobs.detach() - behaviour, owners, len(advantage))
    sums_of = zip(sums.tolist(), counts.tolist(), strict=True)
    keep = torch.tensor([loss.keeps(a, whole, section) for a, whole in zip(advantage, sums_of, strict=True)])
    coefficient = keep * advantage_E / counts
    loss.policy_loss(logprobs, behaviour, owners, coefficient, section.weight_cap).backward()
    assert logprobs.grad is not None
    return logprobs.grad


@given(ratios, advantages)
def test_capped_equals_its_formula(log_ratio: list[float], advantage: float) -> None:
    s = math.exp(sum(log_ratio) / len(log_ratio))
    clipped = (advantage > 0 and s > 1.005) or (advantage < 0 and s < 0.995)
    expected = [0.0 if clipped else -advantage * min(math.exp(r), 5.0) / len(log_ratio) for r in log_ratio]
    found = gradient(log_ratio, [0] * len(log_ratio), [advantage], CAPPED)
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


@given(ratios, advantages)
def test_truncated_equals_gspo_token_against_the_policy_itself(
    log_ratio: list[float], advantage: float
) -> None:
    """min(s_t A, clip(s_t) A) with s_t = stopgrad(s) pi_theta / stopgrad(pi_theta)."""
    logprobs = torch.full((len(log_ratio),), -2.0, dtype=torch.float64, requires_grad=True)
    old = logprobs.detach()
    correction = torch.tensor(log_ratio, dtype=torch.float64).exp().clamp(max=5.0)
    s = (logprobs - old).mean().exp().detach() * (logprobs - logprobs.detach()).exp()
    objective = torch.minimum(s * advantage, s.clamp(0.995, 1.005) * advantage)
    (-(correction * objective).mean()).backward()
    assert logprobs.grad is not None
    found = gradient(log_ratio, [0] * len(log_ratio), [advantage], TRUNCATED)
    assert (found - logprobs.grad).abs().max() < 1e-12


@given(st.integers(1, 12), advantages)
def test_both_forms_agree_on_policy(length: int, advantage: float) -> None:
    on_policy = [0.0] * length
    capped = gradient(on_policy, [0] * length, [advantage], CAPPED)
    assert torch.equal(capped, gradient(on_policy, [0] * length, [advantage], TRUNCATED))
    assert capped.sum().item() == pytest.approx(-advantage)


@given(st.integers(1, 9), st.integers(1, 9))
def test_every_execution_has_the_same_weight(first: int, second: int) -> None:
    owner = [0] * first + [1] * second
    found = gradient([0.0] * len(owner), owner, [1.0, 1.0], CAPPED)
    assert found[:first].sum().item() == pytest.approx(found[first:].sum().item()) == pytest.approx(-1.0)


@pytest.mark.parametrize(("log_q", "weight"), [(-40, 1), (4.9, 133.2898), (5.1, 147.4132), (200, 147.4132)])
def test_kl_has_a_bounded_gradient(log_q: float, weight: float) -> None:
    """|1 - q| up to the bound, constant beyond it; in float32, where exp(200) is infinite."""
    logprobs = torch.tensor([-float(log_q), -1.0], requires_grad=True)
    section, ones = LossSection(kl_coefficient=0.5), torch.ones(1)
    owner, behaviour = torch.zeros(2, dtype=torch.long), torch.tensor([0.0, -1.0])
    value = loss.regularisation(logprobs, behaviour, torch.zeros(2), owner, ones, section)
    value.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.abs().tolist() == pytest.approx([0.5 * weight, 0.0], rel=1e-4)
    assert torch.isfinite(value)


def test_kl_is_continuous_at_its_bound() -> None:
    section, owner = LossSection(kl_coefficient=1.0), torch.zeros(1, dtype=torch.long)
    sides = [torch.tensor([-loss.MAX_LOG_Q + shift], dtype=torch.float64) for shift in (-1e-9, 1e-9)]
    zeros, ones = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    above, below = (loss.regularisation(x, zeros, zeros, owner, ones, section).item() for x in sides)
    assert above > below
    assert above == pytest.approx(below, rel=1e-8)


def test_sums_are_as_exact_as_their_terms() -> None:
    """Added in float32, ten thousand terms would be off by more than a clip bound tolerates."""
    terms = torch.full((10_000,), 0.1)
    (total,), _ = loss.execution_sums(terms, torch.zeros(10_000, dtype=torch.long), 1)
    assert total.item() == pytest.approx(terms.double().sum().item(), rel=1e-12)


def test_statistics_are_sums_over_targets() -> None:
    log_ratio = torch.tensor([0.0, math.log(6.0), 40.0, math.log(0.5)], dtype=torch.float64)
    counted, entropy = torch.tensor([True, True, False, True]), torch.tensor([1.0, 2.0, 9.0, 3.0])
    found = loss.totals(log_ratio, torch.zeros(4, dtype=torch.float64), entropy, counted, 5.0)
    assert (found.num_targets, found.num_capped, found.entropy) == (3, 1, 6.0)
    assert found.ratio == pytest.approx(7.5)
    assert found.k3 == pytest.approx((6 - 1 - math.log(6)) + (0.5 - 1 - math.log(0.5)))
    assert (found + found).ratio == pytest.approx(15.0)
