"""Tiny models, target paths and trees."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from gpu_workers.trainer.data import TargetPath
from gyre.trajectory.extraction import ExtractionNode, extract
from gyre.trajectory.layout import head, segments_to


def tiny_config(*, tied: bool, vocab_size: int = 61) -> Qwen3Config:
    """Return a two-layer model with an odd vocabulary, which tensor parallelism has to pad."""
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )


def make_model(hf: Qwen3Config, dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    """Make a model with random weights, norms included: norms of one would hide that two were swapped."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(hf)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model.to(dtype).eval()


def save_model(hf: Qwen3Config, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    make_model(hf, dtype).save_pretrained(folder)
    return folder


def random_path(
    seed: int,
    *,
    execution: str = "e",
    advantage: float = 1.0,
    length: int = 20,
    num_targets: int | None = None,
) -> TargetPath:
    """Make a path whose later half are targets, with random log-probabilities."""
    rng = np.random.default_rng(seed)
    targets = np.arange(length // 2, length)
    return TargetPath(
        execution_id=execution,
        advantage=advantage,
        num_execution_targets=num_targets or len(targets),
        tokens=rng.integers(0, 61, length),
        targets=targets,
        behaviour=rng.uniform(-6, -3, len(targets)).astype(np.float32),
        segments=[(f"{execution}/{seed}", length - 1)],
    )


def random_nodes(rng: np.random.Generator, count: int, max_tokens: int = 9) -> list[ExtractionNode]:
    """Make a tree that branches anywhere, also inside nodes; every node but the root was sampled."""
    nodes = list[ExtractionNode]()
    for index in range(count):
        parent = nodes[rng.integers(index)] if index else None
        offset = int(rng.integers(1, parent.num_tokens + 1)) if parent else 0
        nodes.append(
            ExtractionNode(
                id=str(index),
                parent_id=parent.id if parent else None,
                parent_offset=offset,
                position=parent.position + offset if parent else 0,
                num_tokens=int(rng.integers(2, max_tokens + 1)),
                trainable=index > 0,
                role="main",
            )
        )
    return nodes


def paths_of(
    nodes: Sequence[ExtractionNode], rng: np.random.Generator, execution: str = "e", advantage: float = 1.0
) -> list[TargetPath]:
    """Extract every trajectory of a tree, with random tokens and log-probabilities."""
    by_id = {node.id: node for node in nodes}
    ids = {node.id: rng.integers(0, 61, node.num_tokens) for node in nodes}
    logprobs = {node.id: rng.uniform(-6, -3, node.num_tokens).astype(np.float32) for node in nodes}
    found = extract(nodes, max_paths=len(nodes), seed=execution)
    paths = list[TargetPath]()
    for path in found:
        segments = segments_to(path.leaf_id, by_id)
        places = [by_id[name].position + np.arange(by_id[name].num_tokens) for name in path.target_ids]
        targets = np.concatenate(places)
        end = int(targets[-1]) + 1
        named = [(f"{execution}/{name}", count) for name, count in segments]
        paths.append(
            TargetPath(
                execution_id=execution,
                advantage=advantage,
                num_execution_targets=sum(each.num_targets for each in found),
                tokens=np.concatenate([ids[name][:count] for name, count in segments])[:end],
                targets=targets,
                behaviour=np.concatenate([logprobs[name] for name in path.target_ids]),
                segments=head(named, end - 1),
            )
        )
    return paths


def separated(paths: Sequence[TargetPath]) -> list[TargetPath]:
    """Return the same paths with nothing shared, as in flat training."""
    return [replace(path, segments=[(f"separate/{i}", len(path.tokens) - 1)]) for i, path in enumerate(paths)]
