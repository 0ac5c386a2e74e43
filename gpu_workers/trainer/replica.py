"""Forward, backward and update, as every rank of a trainer runs them. Knows neither Postgres nor S3."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3Config

from gpu_workers.trainer import hf_weights, loss
from gpu_workers.trainer.data import PackedForest, TargetPath, pack
from gpu_workers.trainer.device import megatron_allocates_on
from gpu_workers.trainer.logprobs import ScoredTargets, score_targets
from gpu_workers.trainer.megatron_model import DTYPES, PolicyModel
from gpu_workers.trainer.optimizer import MainGradAdamW
from gpu_workers.transfer import payload_sha256
from gyre.contracts.errors import TrainingImpossible
from gyre.settings.runfile import LossSection, OptimizerSection

Sums = dict[str, tuple[float, int]]
"""Maps an execution to its sum of log(pi_theta / pi_behaviour) over the targets seen, and their number."""


@dataclass(frozen=True)
class StepResult:
    """One replica's results for a micro-step; the defaults stand for a replica without one."""

    value: float = 0.0
    """The un-normalised loss."""
    num_tokens: int = 0
    """Tokens computed."""
    num_path_tokens: int = 0
    """Tokens that would have been computed with nothing shared between paths."""
    totals: loss.Totals = field(default_factory=loss.Totals)
    """Statistics over the targets of executions that were not scored before."""
    sums: Sums = field(default_factory=dict)
    """Sums over the targets of this micro-step."""
    kept: tuple[str, ...] = ()
    """Executions whose policy term entered the gradient."""


@dataclass(frozen=True)
class CloseResult:
    """The batch's whole gradient, as one update used it."""

    grad_norm: float
    """Global norm after division by M, the batch's executions, and before clipping."""
    gradient_sha256: str
    """SHA-256 of the un-normalised gradient sum."""


class Replica:
    """The model, its gradient sum and its optimizer on one rank."""

    def __init__(self, hf: Qwen3Config, dtype: str, section: OptimizerSection, device: torch.device) -> None:
        self._hf, self._dtype, self._device = hf, DTYPES[dtype], device
        with megatron_allocates_on(device):
            self.policy = PolicyModel(hf, self._dtype).to(device)
            self._ddp = DistributedDataParallel(
                config=self.policy.gpt.config,
                # A bfloat16 sum over many micro-steps would lose small gradients.
                ddp_config=DistributedDataParallelConfig(
                    grad_reduce_in_fp32=self._dtype == torch.bfloat16, overlap_grad_reduce=False
                ),
                module=self.policy,
            )
        self._parameters = dict[str, Any](self.policy.gpt.named_parameters())
        self._optimizer = MainGradAdamW(self._parameters, section)

    def load(self, weights_file: str, optimizer_file: str | None) -> None:
        """Load weights and optimizer state from files in Hugging Face names.

        Without a state file the optimizer starts afresh. Raises BadInput if a tensor is missing.
        """
        self._load_weights(weights_file)
        state, steps = _read_optimizer(optimizer_file)
        self._optimizer.load({kind: self._shard(named) for kind, named in state.items()}, steps)

    def _load_weights(self, file: str) -> None:
        # A separate method, so that the file's tensors are freed before the optimizer's are read.
        shard = self._shard(hf_weights.select_weights(self._hf, load_file(file), self._dtype))
        assert shard.keys() == self._parameters.keys()
        for name, parameter in self._parameters.items():
            parameter.data.copy_(shard[name])

    def begin(self) -> None:
        """Set the gradient sum to zero."""
        self._ddp.zero_grad_buffer()

    def pack(self, paths: Sequence[TargetPath]) -> PackedForest:
        """Pack paths into one row on this device; the loss is computed in float32 or better."""
        return pack(paths, self._device, torch.promote_types(self._dtype, torch.float32))

    def forward(self, packed: PackedForest, temperature: float) -> ScoredTargets:
        """Compute log-probability and entropy of each target of a packed row."""
        return score_targets(self._ddp(packed.row), packed.row.targets, temperature, self._hf.vocab_size)

    def score(self, paths: Sequence[TargetPath], section: LossSection, temperature: float) -> StepResult:
        """Compute, without a gradient, the sums that decide keep_i of executions in several micro-steps."""
        if not paths:
            return StepResult()
        packed = self.pack(paths)
        with torch.no_grad():
            scored = self.forward(packed, temperature)
        return StepResult(
            num_tokens=len(packed.row.tokens),
            totals=_totals(packed, scored, {}, section),
            sums=_sums(packed, scored),
        )

    def accumulate(
        self, paths: Sequence[TargetPath], known: Sums, section: LossSection, temperature: float
    ) -> StepResult:
        """Add a micro-step's un-normalised gradient. ``known`` has sums of executions scored as a whole."""
        if not paths:
            return StepResult()
        packed = self.pack(paths)
        scored = self.forward(packed, temperature)
        sums = _sums(packed, scored)
        advantages = dict(zip(packed.executions, packed.advantage.tolist(), strict=True))
        kept = tuple(n for n, a in advantages.items() if a and loss.keeps(a, (sums | known)[n], section))
        keep_E = torch.tensor([name in kept for name in packed.executions], device=self._device)
        weight_E = 1 / packed.num_targets.to(packed.advantage.dtype)
        pair = (scored.logprobs, packed.behaviour)
        coefficient_E = keep_E * packed.advantage * weight_E
        value = loss.policy_loss(*pair, packed.owner, coefficient_E, section.weight_cap)
        if section.regularised:
            value = value + loss.regularisation(*pair, scored.entropy, packed.owner, weight_E, section)
        # Tensor-parallel ranks must all run backward or none: logprobs, and so ``kept``, are equal on all.
        if kept or section.regularised:
            value.backward()
        return StepResult(
            value=value.item(),
            num_tokens=len(packed.row.tokens),
            num_path_tokens=sum(len(rows) for rows in packed.row.layout.rows),
            totals=_totals(packed, scored, known, section),
            sums=sums,
            kept=kept,
        )

    def close(self, num_executions: int, clip_norm: float) -> CloseResult:
        """Reduce the gradient over ranks, divide it by M once, clip it by its global norm once, and update.

        Raises TrainingImpossible, and updates nothing, if the gradient is not finite.
        """
        # Megatron only sums over replicas (calculate_per_token_loss); M below is the only divisor.
        finalize_model_grads([self._ddp])
        digest = self.gradient_sha256()
        norm = self._global_norm() / num_executions
        if not math.isfinite(norm):
            raise TrainingImpossible(f"the gradient norm is {norm}: parameters are left as they were")
        clip = min(1.0, clip_norm / (norm + 1e-6))
        self._optimizer.step(clip / num_executions)
        return CloseResult(norm, digest)

    def close_empty(self) -> CloseResult:
        """Close a batch without a gradient: parameters and moments stay as they are."""
        finalize_model_grads([self._ddp])
        return CloseResult(0.0, self.gradient_sha256())

    def export(self) -> dict[str, Tensor] | None:
        """Return the weights in Hugging Face names on rank 0, None elsewhere."""
        return self._whole({name: p.data for name, p in self._parameters.items()})

    def export_optimizer(self) -> tuple[dict[str, Tensor], int] | None:
        """Return the optimizer's state and number of steps on rank 0, None elsewhere.

        Tensors are named ``<kind>/<Hugging Face name>``.
        """
        found: dict[str, Tensor] = {}
        for kind, named in self._optimizer.state().items():
            whole = self._whole(named) or {}
            found |= {f"{kind}/{name}": tensor for name, tensor in whole.items()}
        return (found, self._optimizer.steps) if torch.distributed.get_rank() == 0 else None

    def gradient_sha256(self) -> str:
        """Return the SHA-256 of the gradient sum, float32 in parameter name order; empty but on rank 0."""
        whole = self.gradients()
        return payload_sha256({n: t.float() for n, t in whole.items()}) if whole else ""

    def gradients(self) -> dict[str, Tensor] | None:
        """Return the gradient sum in Hugging Face names on rank 0, None elsewhere."""
        return self._whole({name: p.main_grad for name, p in self._parameters.items()})

    def _global_norm(self) -> float:
        """Return the gradient's norm over the tensor-parallel ranks."""
        # Norm weights have a copy on every rank: only the first rank counts theirs.
        first = parallel_state.get_tensor_model_parallel_rank() == 0
        own = [p for name, p in self._parameters.items() if first or hf_weights.is_sharded(name)]
        total = sum((p.main_grad.double().square().sum() for p in own), torch.zeros((), dtype=torch.float64))
        total = total.to(self._device)
        torch.distributed.all_reduce(total, group=parallel_state.get_tensor_model_parallel_group())
        return total.sqrt().item()

    def _shard(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        rank = parallel_state.get_tensor_model_parallel_rank()
        size = parallel_state.get_tensor_model_parallel_world_size()
        return hf_weights.to_shard(self._hf, named, rank, size)

    def _whole(self, shard: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Gather whole tensors, in Hugging Face names, on the CPU of rank 0."""
        if parallel_state.get_data_parallel_rank() != 0:
            return None  # the other replicas hold the same
        group: Any = parallel_state.get_tensor_model_parallel_group()
        shards: list[dict[str, Tensor]] = [{} for _ in range(group.size())]
        # One tensor at a time: all of them would not fit on the device alongside the model.
        for name, tensor in shard.items():
            parts = [tensor]
            if len(shards) > 1:
                parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in shards]
                torch.distributed.all_gather(parts, tensor.contiguous(), group=group)
            if torch.distributed.get_rank() == 0:
                for own, part in zip(shards, parts, strict=True):
                    own[name] = part.cpu()
        return hf_weights.from_shards(self._hf, shards) if shards[0] else None


def _sums(packed: PackedForest, scored: ScoredTargets) -> Sums:
    """Sum the log ratios of each execution's targets in this row."""
    log_ratio_T = scored.logprobs.detach() - packed.behaviour
    sums_E, counts_E = loss.execution_sums(log_ratio_T, packed.owner, len(packed.executions))
    return dict(zip(packed.executions, zip(sums_E.tolist(), counts_E.tolist(), strict=True), strict=True))


def _totals(packed: PackedForest, scored: ScoredTargets, known: Sums, section: LossSection) -> loss.Totals:
    """Total the statistics of executions that are not ``known``: those were counted when they were scored."""
    new_E = torch.tensor([name not in known for name in packed.executions], device=packed.owner.device)
    targets = (scored.logprobs, packed.behaviour, scored.entropy)
    return loss.totals(*targets, new_E[packed.owner], section.weight_cap)


def _read_optimizer(file: str | None) -> tuple[dict[str, dict[str, Tensor]], int]:
    """Read ``{kind: {Hugging Face name: tensor}}`` and the number of steps."""
    if file is None:
        return {}, 0
    state: dict[str, dict[str, Tensor]] = {}
    with safe_open(file, framework="pt") as opened:
        for key in opened.keys():  # noqa: SIM118
            kind, _, name = key.partition("/")
            state.setdefault(kind, {})[name] = opened.get_tensor(key)
        return state, int(opened.metadata()["steps"])
