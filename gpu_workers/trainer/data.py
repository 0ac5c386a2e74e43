"""Rows of Postgres to packed tensors. Token ids are used as stored, never tokenized again.

Shapes: S tokens in the packed row, T targets in it, E executions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from db.models import BatchExecutionRow, TrajectoryRow, TreeNodeRow
from gpu_workers.trainer.megatron_model import PackedTokens
from gyre.contracts.errors import TrainingImpossible
from gyre.contracts.lifecycle import NodeKind
from gyre.trajectory.layout import Segments, head, lay_out, segments_to


@dataclass(frozen=True)
class TargetPath:
    """One trajectory, ready to train on."""

    execution_id: str
    advantage: float
    num_execution_targets: int
    """|T_i|, counted over all trajectories of the execution."""
    tokens: NDArray[np.int64]
    """Token ids up to and including the last target."""
    targets: NDArray[np.int64]
    """Positions of the targets in ``tokens``."""
    behaviour: NDArray[np.float32]
    """Log-probabilities with which the policy sampled the targets."""
    segments: Segments
    """Tree nodes of the tokens before the last target: the part of this path that is computed."""


@dataclass(frozen=True)
class PackedForest:
    """A micro-step's paths in one row, with everything the loss needs."""

    row: PackedTokens
    behaviour: torch.Tensor
    """[T] log-probabilities with which the targets were sampled."""
    owner: torch.Tensor
    """[T] index of each target's execution in ``executions``."""
    executions: list[str]
    """Execution ids in first-seen order."""
    advantage: torch.Tensor
    """[E]"""
    num_targets: torch.Tensor
    """[E] |T_i|, including targets that are in other micro-steps."""


def assemble(
    trajectory: TrajectoryRow, nodes: Mapping[str, TreeNodeRow], execution: BatchExecutionRow
) -> TargetPath:
    """Build the path from the root to a trajectory's leaf. Raises TrainingImpossible if the rows disagree."""
    path = segments_to(trajectory.leaf_node_id, nodes)
    wanted = set(trajectory.target_node_ids)
    tokens, targets, behaviour, start = [], [], [], 0
    for name, cut in path:
        tokens.append(np.frombuffer(nodes[name].token_ids, "<i4", count=cut))
        if name in wanted:
            targets.append(np.arange(start, start + cut))
            behaviour.append(_logprobs(nodes[name], cut))
        start += cut
    positions = np.concatenate(targets) if targets else np.zeros(0, np.int64)
    if start != trajectory.num_tokens or len(positions) != trajectory.num_targets or 0 in positions:
        raise TrainingImpossible(f"{trajectory.id} does not have the tokens and targets that its row names")
    end = int(positions[-1]) + 1 if len(positions) else 0  # tokens after the last target predict nothing
    return TargetPath(
        execution_id=trajectory.execution_id,
        advantage=execution.advantage,
        num_execution_targets=execution.num_targets,
        tokens=np.concatenate(tokens)[:end].astype(np.int64),
        targets=positions,
        behaviour=np.concatenate(behaviour) if behaviour else np.zeros(0, np.float32),
        segments=head(path, end - 1),
    )


def _logprobs(node: TreeNodeRow, cut: int) -> NDArray[np.float32]:
    """Read the log-probabilities of a node's first ``cut`` tokens."""
    if node.kind != NodeKind.SAMPLED or node.logprobs is None:
        raise TrainingImpossible(f"{node.id} was not sampled by the policy, so it cannot be a target")
    logprobs = np.frombuffer(node.logprobs, "<f4", count=cut)
    if not np.isfinite(logprobs).all():
        raise TrainingImpossible(f"{node.id} has a log-probability that is not finite")
    return logprobs


def pack(paths: Sequence[TargetPath], device: torch.device, dtype: torch.dtype) -> PackedForest:
    """Pack paths into one row in which shared tokens are computed once.

    A path's last token predicts nothing and is left out. A target's logits come from the token before it on
    its own path.
    """
    layout = lay_out([path.segments for path in paths])
    tokens = np.zeros((2, layout.num_tokens), np.int64)  # token ids, positions
    for path, rows in zip(paths, layout.rows, strict=True):
        tokens[:, rows] = path.tokens[:-1], np.arange(len(rows))
    executions = list(dict.fromkeys(path.execution_id for path in paths))
    first = {path.execution_id: path for path in reversed(paths)}  # reversed: the first path is set last
    owner = [np.full(len(path.targets), executions.index(path.execution_id)) for path in paths]
    predicting = [rows[path.targets - 1] for path, rows in zip(paths, layout.rows, strict=True)]
    row = PackedTokens(
        tokens=_tensor(tokens[0], device),
        positions=_tensor(tokens[1], device),
        layout=layout,
        rows=_tensor(np.concatenate(predicting), device),
        targets=_tensor(np.concatenate([path.tokens[path.targets] for path in paths]), device),
    )
    return PackedForest(
        row=row,
        behaviour=_tensor(np.concatenate([path.behaviour for path in paths]), device).to(dtype),
        owner=_tensor(np.concatenate(owner), device),
        executions=executions,
        advantage=torch.tensor([first[e].advantage for e in executions], device=device, dtype=dtype),
        num_targets=torch.tensor([first[e].num_execution_targets for e in executions], device=device),
    )


def _tensor(array: NDArray[np.generic], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
