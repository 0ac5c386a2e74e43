"""Modified GSPO: token weights capped, executions clipped, every execution weighs the same.

L = (1/M) sum_i (1/|T_i|) sum_{t in T_i} l_it over the M scored executions of the batch, with
l_it = -keep_i * A_i * stopgrad(w_it) * log pi_theta(t) + kl_coefficient * k_it - entropy_coefficient * H_it.
T_i is what the policy sampled: text of the harness and of tools is in none of the terms. Nothing here
divides by M: micro-steps give un-normalised sums, and the trainer divides once when the batch closes.

``capped``: w = min(pi_theta / pi_behaviour, cap); s_i = exp(mean_t log(pi_theta / pi_behaviour)); keep_i
is 0 where A_i > 0 and s_i > clip_high, or A_i < 0 and s_i < clip_low.

``truncated``: w = min(pi_old / pi_behaviour, cap) with GSPO-token clipping against pi_old. A batch has
one update, so pi_old is pi_theta while the gradient is taken: s_i against it is 1 and the clip never acts.

k = q - 1 - log q with q = pi_behaviour / pi_theta of the target is the k3 estimate of KL(theta || behaviour)
(Schulman 2020, as GRPO uses it: on samples of the behaviour policy without importance weights); its
gradient is (1 - q) grad log pi_theta. Above log q = MAX_LOG_Q it goes on as its tangent: its gradient stays
at that weight, so that one stale token neither outweighs a batch nor is infinite. H is the entropy of
pi_theta at the target, over the whole vocabulary and at the run's temperature, with its gradient. Both hold
for clipped executions and those without advantage.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gyre.settings.runfile import LossSection

MAX_LOG_Q = 5.0
"""The policy gives a target 1/148 of the probability that it was sampled with; its gradient weighs 147."""


@dataclass(frozen=True)
class Totals:
    """Sums over target tokens, to be added over micro-steps and divided by ``num_targets`` once."""

    num_targets: int = 0
    ratio: float = 0.0
    num_capped: int = 0
    k3: float = 0.0
    """k3 estimate of KL(behaviour || theta): r - 1 - log r, r = pi_theta / pi_behaviour."""
    entropy: float = 0.0

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(
            self.num_targets + other.num_targets,
            self.ratio + other.ratio,
            self.num_capped + other.num_capped,
            self.k3 + other.k3,
            self.entropy + other.entropy,
        )


def execution_sums(log_ratio_T: Tensor, owner_T: Tensor, num_executions: int) -> tuple[Tensor, Tensor]:
    """Per execution: sum of log(pi_theta / pi_behaviour) in float64 and number of targets, both [E]."""
    log_ratio_T = log_ratio_T.double()
    sums = log_ratio_T.new_zeros(num_executions).index_add(0, owner_T, log_ratio_T)
    return sums, torch.bincount(owner_T, minlength=num_executions)


def keeps(advantage: float, sums: tuple[float, int], section: LossSection) -> bool:
    """keep_i of one execution, from the sum of log(pi_theta / pi_behaviour) over all its targets and their
    number; always true for ``truncated``, see the module's text."""
    if section.form == "truncated":
        return True
    ratio = math.exp(sums[0] / sums[1])
    too_high = advantage > 0 and ratio > section.clip_high
    too_low = advantage < 0 and ratio < section.clip_low
    return not (too_high or too_low)


def token_weights(log_ratio_T: Tensor, cap: float) -> Tensor:
    """w_t = min(r_t, cap), without a graph."""
    return log_ratio_T.detach().exp().clamp(max=cap)


def policy_loss(
    logprobs_T: Tensor, behaviour_T: Tensor, owner_T: Tensor, coefficient_E: Tensor, cap: float
) -> Tensor:
    """sum_i c_i sum_t -w_t log pi_theta(t), with c_i = keep_i * A_i / |T_i| of each target's execution."""
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
    """sum_i c_i sum_t (kl_coefficient * k_t - entropy_coefficient * H_t), with c_i = 1 / |T_i|."""
    per_token = torch.zeros_like(logprobs_T)
    if section.kl_coefficient:
        log_q = behaviour_T - logprobs_T
        bounded = log_q.clamp(max=MAX_LOG_Q)
        beyond = math.expm1(MAX_LOG_Q) * (log_q - bounded)
        per_token = per_token + section.kl_coefficient * (bounded.expm1() - bounded + beyond)
    if section.entropy_coefficient:
        per_token = per_token - section.entropy_coefficient * entropy_T
    return (weight_E[owner_T] * per_token).sum()


def totals(
    logprobs_T: Tensor, behaviour_T: Tensor, entropy_T: Tensor, counted_T: Tensor, cap: float
) -> Totals:
    """Statistics of those of a micro-step's targets that are ``counted``, a bool each."""
    # exp of 100 is too much for float32
    log_ratio = (logprobs_T.detach() - behaviour_T)[counted_T].double()
    ratio, entropy = log_ratio.exp(), entropy_T.detach()[counted_T]
    return Totals(
        num_targets=len(log_ratio),
        ratio=ratio.sum().item(),
        num_capped=int((ratio > cap).sum()),
        k3=(ratio - 1 - log_ratio).sum().item(),
        entropy=entropy.sum().item(),
    )
