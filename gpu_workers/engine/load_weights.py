"""Weights: from a Hugging Face directory or another process's memory to fused tensors."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from torch import Tensor

from gpu_workers.engine.architecture import Architecture
from gyre.contracts.engine import WeightsReference
from gyre.contracts.errors import BadInput, TransferFailed

if TYPE_CHECKING:
    from gpu_workers.transfer import PulledWeights, WeightReader


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """``qkv`` and ``gate_up`` stack matrices that multiply the same input, so that each is one product."""

    input_norm: Tensor
    qkv: Tensor
    """[(heads + 2 kv_heads) * head_dim, hidden]"""
    qk_norm: Tensor
    """[heads + kv_heads, head_dim]: q_norm repeated for each query head, then k_norm."""
    out: Tensor
    """[hidden, heads * head_dim]"""
    post_norm: Tensor
    gate_up: Tensor
    """[2 * intermediate, hidden]"""
    down: Tensor
    """[hidden, intermediate]"""


@dataclass(frozen=True, slots=True)
class Weights:
    embed: Tensor
    """[vocab, hidden]"""
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    lm_head: Tensor
    """[vocab, hidden]; the embedding itself when tied."""


def read_directory(model_path: Path) -> dict[str, Tensor]:
    """Tensors of a Hugging Face directory, one file or sharded. Raises BadInput when there are none."""
    index = model_path / "model.safetensors.index.json"
    try:
        names = (
            sorted(set(json.loads(index.read_text())["weight_map"].values()))
            if index.exists()
            else ["model.safetensors"]
        )
        tensors: dict[str, Tensor] = {}
        for name in names:
            tensors |= load_file(model_path / name)
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"model {model_path}: weights cannot be read ({error})") from None
    return tensors


def fuse(
    shape: Architecture, tensors: dict[str, Tensor], *, dtype: torch.dtype, device: torch.device
) -> Weights:
    """Copies, so that the caller may free its tensors.

    Raises TransferFailed when a tensor of the model is missing or has another shape.
    """
    for name, expected in shape.parameter_shapes().items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != expected:
            raise TransferFailed(f"weights: {name} should be {expected}, found {found}")

    def stack(*names: str) -> Tensor:
        return torch.cat([tensors[name] for name in names]).to(device=device, dtype=dtype, copy=True)

    embed = stack("model.embed_tokens.weight")
    return Weights(
        embed=embed,
        layers=tuple(
            _fuse_layer(shape, tensors, f"model.layers.{i}", dtype, device) for i in range(shape.layers)
        ),
        norm=stack("model.norm.weight"),
        lm_head=embed if shape.tied_embeddings else stack("lm_head.weight"),
    )


def _fuse_layer(
    shape: Architecture, tensors: dict[str, Tensor], prefix: str, dtype: torch.dtype, device: torch.device
) -> LayerWeights:
    def stack(*names: str) -> Tensor:
        parts = [tensors[f"{prefix}.{name}.weight"] for name in names]
        return torch.cat(parts).to(device=device, dtype=dtype, copy=True)

    norms = stack("self_attn.q_norm", "self_attn.k_norm").view(2, shape.head_dim)
    return LayerWeights(
        input_norm=stack("input_layernorm"),
        qkv=stack("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        qk_norm=norms.repeat_interleave(torch.tensor([shape.heads, shape.kv_heads], device=device), dim=0),
        out=stack("self_attn.o_proj"),
        post_norm=stack("post_attention_layernorm"),
        gate_up=stack("mlp.gate_proj", "mlp.up_proj"),
        down=stack("mlp.down_proj"),
    )


def moved(weights: Weights, device: torch.device) -> Weights:
    """The same weights on ``device``; themselves if they are there already. Tied embeddings stay tied."""
    embed = weights.embed.to(device)
    return Weights(
        embed=embed,
        layers=tuple(
            LayerWeights(*(getattr(layer, f.name).to(device) for f in fields(layer)))
            for layer in weights.layers
        ),
        norm=weights.norm.to(device),
        lm_head=embed if weights.lm_head is weights.embed else weights.lm_head.to(device),
    )


class WeightPuller:
    """Pulls published weights; the transfer engine is made at the first pull and kept."""

    def __init__(self) -> None:
        self._reader: WeightReader | None = None

    def pull(self, reference: WeightsReference) -> "PulledWeights":
        """Blocks. Raises TransferFailed on a wrong version stamp or checksum."""
        if self._reader is None:
            # Imported here: Mooncake's libraries are needed by publications only.
            from gpu_workers.transfer import WeightReader

            self._reader = WeightReader()
        return self._reader.pull(reference)
