"""What every rank of a trainer does: forward, backward, update. It knows no Postgres and no S3."""

import math
from collections.abc import Iterable, Mapping, Sequence
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
"""By execution: sum of log(pi_theta / pi_behaviour) over targets seen, and their number."""


@dataclass(frozen=True)
class StepResult:
    """``value`` is the un-normalised loss; ``sums`` cover the targets of this micro-step."""

    value: float = 0.0
    num_tokens: int = 0
    """Tokens computed; ``num_path_tokens`` are those of the paths one by one."""
    num_path_tokens: int = 0
    totals: loss.Totals = field(default_factory=loss.Totals)
    """Of the targets of executions that were not scored before."""
    sums: Sums = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    """Executions whose policy term entered the gradient."""


@dataclass(frozen=True)
class CloseResult:
    """``grad_norm`` after division by M and before clipping; ``gradient_sha256`` of the un-normalised sum."""

    grad_norm: float
    gradient_sha256: str


class Replica:
    """The model, its gradient sum and its optimizer on one rank."""

    def __init__(self, hf: Qwen3Config, dtype: str, section: OptimizerSection, device: torch.device) -> None:
        self._hf, self._dtype, self._device = hf, DTYPES[dtype], device
        with megatron_allocates_on(device):
            self.policy = PolicyModel(hf, self._dtype).to(device)
            self._ddp = DistributedDataParallel(
                config=self.policy.gpt.config,
                ddp_config=DistributedDataParallelConfig(
                    grad_reduce_in_fp32=self._dtype == torch.bfloat16, overlap_grad_reduce=False
                ),
                module=self.policy,
            )
        self._parameters = dict[str, Any](self.policy.gpt.named_parameters())
        self._optimizer = MainGradAdamW(self._parameters, section)

    def load(self, weights_file: str, optimizer_file: str | None) -> None:
        """Take weights and optimizer state from files in Hugging Face names; no state file: start afresh."""
        self._set_weights(hf_weights.select_weights(self._hf, load_file(weights_file), self._dtype))
        state, steps = _read_optimizer(optimizer_file)
        self._optimizer.load({kind: self._shard(named) for kind, named in state.items()}, steps)

    def _set_weights(self, named: Mapping[str, Tensor]) -> None:
        shard = self._shard(named)
        assert shard.keys() == self._parameters.keys()
        for name, parameter in self._parameters.items():
            parameter.data.copy_(shard[name])

    def begin(self) -> None:
        """Forget the gradient sum."""
        self._ddp.zero_grad_buffer()

    def score(self, paths: Sequence[TargetPath], section: LossSection, temperature: float) -> StepResult:
        """Forward only: the sums that keep_i of an execution in several micro-steps needs."""
        if not paths:
            return StepResult()
        packed = self._pack(paths)
        with torch.no_grad():
            scored = self._forward(packed, temperature)
        return StepResult(
            num_tokens=len(packed.row.tokens),
            totals=_totals(packed, scored, {}, section),
            sums=_sums(packed, scored),
        )

    def accumulate(
        self, paths: Sequence[TargetPath], known: Sums, section: LossSection, temperature: float
    ) -> StepResult:
        """Add a micro-step's un-normalised gradient. ``known`` holds whole-execution sums from scoring."""
        if not paths:
            return StepResult()
        packed = self._pack(paths)
        scored = self._forward(packed, temperature)
        sums = _sums(packed, scored)
        advantages = dict(zip(packed.executions, packed.advantage.tolist(), strict=True))
        kept = tuple(n for n, a in advantages.items() if a and loss.keeps(a, (sums | known)[n], section))
        keep = torch.tensor([name in kept for name in packed.executions], device=self._device)
        weight = 1 / packed.num_targets.to(packed.advantage.dtype)
        given = (scored.logprobs, packed.behaviour)
        value = loss.policy_loss(*given, packed.owner, keep * packed.advantage * weight, section.weight_cap)
        if section.regularised:
            value = value + loss.regularisation(*given, scored.entropy, packed.owner, weight, section)
        # Under tensor parallelism every rank decides alike: logprobs are equal on all of them.
        if kept or section.regularised:
            value.backward()
        return StepResult(
            value=value.item(),
            num_tokens=len(packed.row.tokens),
            num_path_tokens=_num_path_tokens(packed),
            totals=_totals(packed, scored, known, section),
            sums=sums,
            kept=kept,
        )

    def close(self, num_executions: int, clip_norm: float) -> CloseResult:
        """Reduce over ranks, divide by M once, clip by the global norm once, update.

        Raises TrainingImpossible, and updates nothing, if the gradient is not finite.
        """
        self._reduce()
        digest = self.gradient_sha256()
        norm = self._global_norm() / num_executions
        if not math.isfinite(norm):
            raise TrainingImpossible(f"the gradient norm is {norm}: parameters are left as they were")
        clip = min(1.0, clip_norm / (norm + 1e-6))
        self._optimizer.step(clip / num_executions)
        return CloseResult(norm, digest)

    def close_empty(self) -> CloseResult:
        """A batch without gradient: parameters and moments stay as they are."""
        self._reduce()
        return CloseResult(0.0, self.gradient_sha256())

    def export(self) -> dict[str, Tensor] | None:
        """Weights in Hugging Face names, on rank 0; None elsewhere."""
        return self._whole({name: p.data for name, p in self._parameters.items()})

    def export_optimizer(self) -> tuple[dict[str, Tensor], int] | None:
        """Optimizer state as ``<kind>/<Hugging Face name>`` and its number of steps, on rank 0."""
        found: dict[str, Tensor] = {}
        for kind, named in self._optimizer.state().items():
            whole = self._whole(named) or {}
            found |= {f"{kind}/{name}": tensor for name, tensor in whole.items()}
        return (found, self._optimizer.steps) if torch.distributed.get_rank() == 0 else None

    def gradients(self) -> dict[str, Tensor] | None:
        """The gradient sum in Hugging Face names, on rank 0."""
        return self._whole({name: p.main_grad for name, p in self._parameters.items()})

    def gradient_sha256(self) -> str:
        """SHA-256 of the gradient sum, float32 in parameter name order; empty where it is not whole."""
        whole = self.gradients()
        return payload_sha256({n: t.float() for n, t in whole.items()}) if whole else ""

    def _reduce(self) -> None:
        finalize_model_grads([self._ddp])

    def _pack(self, paths: Sequence[TargetPath]) -> PackedForest:
        return pack(paths, self._device, torch.promote_types(self._dtype, torch.float32))

    def _forward(self, packed: PackedForest, temperature: float) -> ScoredTargets:
        return score_targets(self._ddp(packed.row), packed.row.targets, temperature, self._hf.vocab_size)

    def _global_norm(self) -> float:
        """Over the tensor-parallel ranks; what every rank holds alike is counted once."""
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
        """On the CPU of rank 0; a tensor at a time, because all of them would not fit beside the model."""
        if parallel_state.get_data_parallel_rank() != 0:
            return None  # the other replicas hold the same
        group: Any = parallel_state.get_tensor_model_parallel_group()
        shards: list[dict[str, Tensor]] = [{} for _ in range(group.size())]
        for name, tensor in shard.items():
            parts = _gather(tensor, group)
            if torch.distributed.get_rank() == 0:
                for own, part in zip(shards, parts, strict=True):
                    own[name] = part.cpu()
        return hf_weights.from_shards(self._hf, shards) if shards[0] else None


def _sums(packed: PackedForest, scored: ScoredTargets) -> Sums:
    """Of the targets that are here."""
    log_ratio = scored.logprobs.detach() - packed.behaviour
    total, count = loss.execution_sums(log_ratio, packed.owner, len(packed.executions))
    return dict(zip(packed.executions, zip(total.tolist(), count.tolist(), strict=True), strict=True))


def _totals(packed: PackedForest, scored: ScoredTargets, known: Sums, section: LossSection) -> loss.Totals:
    """Of executions that are not ``known``: the others were counted as a whole when they were scored."""
    new = torch.tensor([name not in known for name in packed.executions], device=packed.owner.device)
    given = (scored.logprobs, packed.behaviour, scored.entropy)
    return loss.totals(*given, new[packed.owner], section.weight_cap)


def _num_path_tokens(packed: PackedForest) -> int:
    return sum(len(rows) for rows in packed.row.layout.rows)


def _gather(tensor: Tensor, group: Any) -> list[Tensor]:
    if group.size() == 1:
        return [tensor]
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(group.size())]
    torch.distributed.all_gather(parts, tensor.contiguous(), group=group)
    return parts


def _read_optimizer(file: str | None) -> tuple[dict[str, dict[str, Tensor]], int]:
    if file is None:
        return {}, 0
    with safe_open(file, framework="pt") as opened:
        steps = int(opened.metadata()["steps"])
        named = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return _by_kind(named.items()), steps


def _by_kind(named: Iterable[tuple[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in named:
        kind, _, rest = name.partition("/")
        found.setdefault(kind, {})[rest] = tensor
    return found
