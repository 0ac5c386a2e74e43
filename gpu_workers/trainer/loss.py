"""Modified GSPO: token weights are capped, executions are clipped, every execution has the same weight.

L = (1/M) sum_i (1/|T_i|) sum_{t in T_i} l_it over the M scored executions of the batch, with
l_it = -keep_i * A_i * stopgrad(w_it) * log pi_theta(t) + kl_coefficient * k_it - entropy_coefficient * H_it.
T_i are the tokens that the policy sampled: text of harness and tools is in none of the terms. Nothing
here divides by M: micro-steps add un-normalised sums, and the trainer divides once when the batch closes.

``capped``: w = min(pi_theta / pi_behaviour, cap); s_i = exp(mean_t log(pi_theta / pi_behaviour)); keep_i
is 0 where A_i > 0 and s_i > clip_high, or A_i < 0 and s_i < clip_low.

``truncated``: w = min(pi_old / pi_behaviour, cap) with GSPO-token clipping against pi_old. A batch has
one update, so pi_old is pi_theta while the gradient is computed: s_i against it is 1 and nothing is clipped.

k = q - 1 - log q with q = pi_behaviour / pi_theta of the target is the k3 estimate of KL(theta || behaviour)
(Schulman 2020, used as in GRPO: on samples of the behaviour policy, without importance weights). Its
gradient is (1 - q) grad log pi_theta. Above log q = MAX_LOG_Q it is extended linearly: the gradient keeps the
weight it has there, so that one stale token neither outweighs a batch nor overflows. H is the entropy of
pi_theta at the target, over the whole vocabulary and at the run's temperature, with its gradient. Both terms
apply to clipped executions and to executions without an advantage as well.

Shape suffixes: _T per target, _E per execution.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gyre.settings.runfile import LossSection

MAX_LOG_Q = 5.0
"""Here a target has 1/148 of the probability that it was sampled with, and its gradient has weight 147."""


@dataclass(frozen=True)
class Totals:
    """Sums over targets. They are added over micro-steps and divided by ``num_targets`` once."""

    num_targets: int = 0
    ratio: float = 0.0
    num_capped: int = 0
    k3: float = 0.0
    """k3 estimate of KL(behaviour || theta): r - 1 - log r with r = pi_theta / pi_behaviour."""
    entropy: float = 0.0
    """Entropy of pi_theta in nats."""

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(
            self.num_targets + other.num_targets,
            self.ratio + other.ratio,
            self.num_capped + other.num_capped,
            self.k3 + other.k3,
            self.entropy + other.entropy,
        )


def execution_sums(log_ratio_T: Tensor, owner_T: Tensor, num_executions: int) -> tuple[Tensor, Tensor]:
    """Sum log(pi_theta / pi_behaviour) in float64 and count targets per execution, both [E]."""
    log_ratio_T = log_ratio_T.double()
    sums = log_ratio_T.new_zeros(num_executions).index_add(0, owner_T, log_ratio_T)
    return sums, torch.bincount(owner_T, minlength=num_executions)


def keeps(advantage: float, sums: tuple[float, int], section: LossSection) -> bool:
    """Return keep_i of one execution; always true for ``truncated``, as the module docstring explains.

    ``sums`` are the sum of log(pi_theta / pi_behaviour) over all of its targets, and their number.
    """
    if section.form == "truncated":
        return True
    ratio = math.exp(sums[0] / sums[1])
    too_high = advantage > 0 and ratio > section.clip_high
    too_low = advantage < 0 and ratio < section.clip_low
    return not (too_high or too_low)


def token_weights(log_ratio_T: Tensor, cap: float) -> Tensor:
    """Compute w_t = min(r_t, cap), without a graph."""
    return log_ratio_T.detach().exp().clamp(max=cap)


def policy_loss(
    logprobs_T: Tensor, behaviour_T: Tensor, owner_T: Tensor, coefficient_E: Tensor, cap: float
) -> Tensor:
    """Compute sum_i c_i sum_t -w_t log pi_theta(t), with c_i = keep_i * A_i / |T_i|."""
    weights = token_weights(logprobs_T - behaviour_T, cap)
    return -(coefficient_E[owner_T] * weights * logprobs_T).sum()


def regularisation(
    logprobs_T: Tensor,
    behaviour_T: Tensor,
    entropy_T: Tensor,
    owner_T: Tensor,
    weight_E: Tensor,
    section: LossSection,
) -> Tensor:
    """Compute sum_i c_i sum_t (kl_coefficient * k_t - entropy_coefficient * H_t), with c_i = 1 / |T_i|."""
    per_token = torch.zeros_like(logprobs_T)
    if section.kl_coefficient:
        log_q = behaviour_T - logprobs_T
        bounded = log_q.clamp(max=MAX_LOG_Q)
        beyond = math.expm1(MAX_LOG_Q) * (log_q - bounded)  # the tangent at the bound
        per_token = per_token + section.kl_coefficient * (bounded.expm1() - bounded + beyond)
    if section.entropy_coefficient:
        per_token = per_token - section.entropy_coefficient * entropy_T
    return (weight_E[owner_T] * per_token).sum()


def totals(
    logprobs_T: Tensor, behaviour_T: Tensor, entropy_T: Tensor, counted_T: Tensor, cap: float
) -> Totals:
    """Sum the statistics of a micro-step's targets for which ``counted_T`` is true."""
    # float64: in float32, exp overflows from 89 on.
    log_ratio = (logprobs_T.detach() - behaviour_T)[counted_T].double()
    ratio, entropy = log_ratio.exp(), entropy_T.detach()[counted_T]
    return Totals(
        num_targets=len(log_ratio),
        ratio=ratio.sum().item(),
        num_capped=int((ratio > cap).sum()),
        k3=(ratio - 1 - log_ratio).sum().item(),
        entropy=entropy.sum().item(),
    )
