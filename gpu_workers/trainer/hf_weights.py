"""Conversion between Hugging Face tensors and Megatron's shards, exact in both directions.

In each layer, ``linear_qkv`` has the query heads, key and value of one key-value head after another, and
``linear_fc1`` has, on each tensor-parallel rank, its part of the gate projection and then of the up
projection. The same functions convert gradients and optimizer state, which have their parameters' shapes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3Config

from gpu_workers.trainer.megatron_model import padded_vocab
from gyre.contracts.errors import BadInput

NORMS = {
    "input_layernorm.weight": "input_layernorm.weight",
    "post_attention_layernorm.weight": "pre_mlp_layernorm.weight",
    "self_attn.q_norm.weight": "self_attention.q_layernorm.weight",
    "self_attn.k_norm.weight": "self_attention.k_layernorm.weight",
}
ROW_PARALLEL = {
    "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
    "mlp.down_proj.weight": "mlp.linear_fc2.weight",
}
QKV, GATE_UP = "self_attention.linear_qkv.weight", "mlp.linear_fc1.weight"
EMBEDDING, FINAL_NORM = "embedding.word_embeddings.weight", "decoder.final_layernorm.weight"
OUTPUT = "output_layer.weight"


def is_sharded(megatron_name: str) -> bool:
    """Tell whether each tensor-parallel rank has a part of a parameter; norms are whole on every rank.

    Megatron marks parameters itself, but only in its initialization, which is skipped here.
    """
    return "layernorm" not in megatron_name


def read_safetensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a Hugging Face directory to the CPU. Raises BadInput if it has none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise BadInput(f"model.path {folder}: no .safetensors file")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def hf_names(hf: Qwen3Config) -> list[str]:
    """List the tensors that a checkpoint must have; a tied output layer is not stored."""
    parts = [*NORMS, *ROW_PARALLEL, *(f"self_attn.{p}_proj.weight" for p in "qkv")]
    parts += ["mlp.gate_proj.weight", "mlp.up_proj.weight"]
    layers = [f"model.layers.{i}.{part}" for i in range(hf.num_hidden_layers) for part in parts]
    head = [] if hf.tie_word_embeddings else ["lm_head.weight"]
    return sorted(["model.embed_tokens.weight", "model.norm.weight", *head, *layers])


def select_weights(hf: Qwen3Config, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the checkpoint's tensors in ``dtype``. Raises BadInput if one is missing."""
    names = hf_names(hf)
    missing = [name for name in names if name not in tensors]
    if missing:
        raise BadInput(f"the model has no tensor {missing[0]!r}")
    return {name: tensors[name].to(dtype).contiguous() for name in names}


def to_shard(hf: Qwen3Config, tensors: Mapping[str, Tensor], rank: int, size: int) -> dict[str, Tensor]:
    """Build Megatron's tensors of tensor-parallel rank ``rank`` out of ``size``."""
    shard = {
        EMBEDDING: _vocab_part(tensors["model.embed_tokens.weight"], rank, size),
        FINAL_NORM: tensors["model.norm.weight"],
    }
    if not hf.tie_word_embeddings:
        shard[OUTPUT] = _vocab_part(tensors["lm_head.weight"], rank, size)
    for layer in range(hf.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        parts = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        mapped = _layer_to_shard(hf, parts, rank, size)
        shard |= {f"decoder.layers.{layer}.{name}": tensor for name, tensor in mapped.items()}
    return shard


def from_shards(hf: Qwen3Config, shards: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Build the whole model's Hugging Face tensors from the shards of all ranks, in rank order."""
    whole = {
        "model.embed_tokens.weight": torch.cat([s[EMBEDDING] for s in shards])[: hf.vocab_size],
        "model.norm.weight": shards[0][FINAL_NORM],
    }
    if not hf.tie_word_embeddings:
        whole["lm_head.weight"] = torch.cat([s[OUTPUT] for s in shards])[: hf.vocab_size]
    for layer in range(hf.num_hidden_layers):
        prefix = f"decoder.layers.{layer}."
        parts = [{n.removeprefix(prefix): t for n, t in s.items() if n.startswith(prefix)} for s in shards]
        mapped = _layer_from_shards(hf, parts)
        whole |= {f"model.layers.{layer}.{name}": tensor for name, tensor in mapped.items()}
    return {name: tensor.contiguous() for name, tensor in whole.items()}


def _layer_to_shard(hf: Any, parts: Mapping[str, Tensor], rank: int, size: int) -> dict[str, Tensor]:
    groups, dim = hf.num_key_value_heads, hf.head_dim
    q, k, v = (
        parts[f"self_attn.{p}_proj.weight"].reshape(groups, -1, dim, hf.hidden_size) for p in ("q", "k", "v")
    )
    qkv = torch.cat([q, k, v], dim=1).chunk(size)[rank].reshape(-1, hf.hidden_size)
    gate, up = (parts[f"mlp.{p}_proj.weight"].chunk(size)[rank] for p in ("gate", "up"))
    shard = {megatron: parts[name] for name, megatron in NORMS.items()}
    shard |= {megatron: parts[name].chunk(size, dim=1)[rank] for name, megatron in ROW_PARALLEL.items()}
    return {**shard, QKV: qkv, GATE_UP: torch.cat([gate, up])}


def _layer_from_shards(hf: Any, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    groups, dim, width = hf.num_key_value_heads, hf.head_dim, hf.hidden_size
    qkv = torch.cat([part[QKV].reshape(groups // len(parts), -1, dim, width) for part in parts])
    # Each key-value head's group ends with one key and one value; the rest are its query heads.
    q, k, v = qkv.split([qkv.shape[1] - 2, 1, 1], dim=1)
    halves = [part[GATE_UP].chunk(2) for part in parts]
    whole = {name: parts[0][megatron] for name, megatron in NORMS.items()}
    for name, megatron in ROW_PARALLEL.items():
        whole[name] = torch.cat([part[megatron] for part in parts], dim=1)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        whole[f"self_attn.{name}_proj.weight"] = tensor.reshape(-1, width)
    whole["mlp.gate_proj.weight"] = torch.cat([gate for gate, _ in halves])
    whole["mlp.up_proj.weight"] = torch.cat([up for _, up in halves])
    return whole


def _vocab_part(tensor: Tensor, rank: int, size: int) -> Tensor:
    padding = padded_vocab(len(tensor), size) - len(tensor)
    return torch.cat([tensor, tensor.new_zeros(padding, tensor.shape[1])]).chunk(size)[rank]
