"""Loading weights from a Hugging Face directory or another process's memory into fused tensors."""

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
    """Weights of one layer. ``qkv`` and ``gate_up`` stack matrices with the same input into one product."""

    input_norm: Tensor
    qkv: Tensor
    """[(heads + 2 kv_heads) * head_dim, hidden]"""
    qk_norm: Tensor
    """[heads + kv_heads, head_dim]: q_norm once per query head, then k_norm once per kv head."""
    out: Tensor
    """[hidden, heads * head_dim]"""
    post_norm: Tensor
    gate_up: Tensor
    """[2 * intermediate, hidden]"""
    down: Tensor
    """[hidden, intermediate]"""


@dataclass(frozen=True, slots=True)
class Weights:
    """Fused weights of the whole model."""

    embed: Tensor
    """[vocab, hidden]"""
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    lm_head: Tensor
    """[vocab, hidden]; the embedding itself when tied."""


def read_directory(model_path: Path) -> dict[str, Tensor]:
    """Return the tensors of a Hugging Face directory, one file or sharded. Raises BadInput if unreadable."""
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
    """Copy tensors by their Hugging Face names into fused weights, so that the caller may free its own.

    Raises TransferFailed when a tensor is missing or has the wrong shape.
    """
    for name, expected in shape.parameter_shapes().items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != expected:
            raise TransferFailed(f"weights: {name} must have shape {expected}, found {found}")

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
    """Return the weights on ``device``, without a copy if they are there. Tied embeddings stay tied."""
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
    """Pulls published weights. Creates the transfer engine at the first pull and keeps it."""

    def __init__(self) -> None:
        self._reader: WeightReader | None = None

    def pull(self, reference: WeightsReference) -> "PulledWeights":
        """Pull and verify, blocking. Raises TransferFailed on a wrong version stamp or checksum."""
        if self._reader is None:
            # Imported here because Mooncake's libraries are needed for publication only.
            from gpu_workers.transfer import WeightReader

            self._reader = WeightReader()
        return self._reader.pull(reference)
