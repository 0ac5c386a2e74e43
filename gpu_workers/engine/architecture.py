"""The sizes of a model, read from a Hugging Face ``config.json``."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.contracts.errors import BadInput

_REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of a Qwen3 decoder. ``head_dim`` need not be ``hidden / heads``."""

    vocab_size: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    tied_embeddings: bool

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor by its Hugging Face name. Tied embeddings have no ``lm_head``."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        if not self.tied_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden)
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer_shapes = {
            "input_layernorm.weight": (self.hidden,),
            "post_attention_layernorm.weight": (self.hidden,),
            "self_attn.q_proj.weight": (query, self.hidden),
            "self_attn.k_proj.weight": (key, self.hidden),
            "self_attn.v_proj.weight": (key, self.hidden),
            "self_attn.o_proj.weight": (self.hidden, query),
            "self_attn.q_norm.weight": (self.head_dim,),
            "self_attn.k_norm.weight": (self.head_dim,),
            "mlp.gate_proj.weight": (self.intermediate, self.hidden),
            "mlp.up_proj.weight": (self.intermediate, self.hidden),
            "mlp.down_proj.weight": (self.hidden, self.intermediate),
        }
        for index in range(self.layers):
            shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer_shapes.items()}
        return shapes


def read_architecture(model_path: Path) -> Architecture:
    """Read the sizes. Raises BadInput unless the folder holds a Qwen3 model of a supported variant."""
    try:
        config = json.loads((model_path / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"model {model_path}: config.json cannot be read ({error})") from None
    _refuse_variants(config, model_path)
    missing = [key for key in _REQUIRED if key not in config]
    if missing:
        raise BadInput(f"model {model_path}: config.json lacks {', '.join(missing)}")
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    return Architecture(
        vocab_size=config["vocab_size"],
        hidden=hidden,
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def _refuse_variants(config: dict[str, Any], model_path: Path) -> None:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    layer_types = set(config.get("layer_types") or ["full_attention"])
    problems = {
        f"model_type {config.get('model_type')!r} (only 'qwen3')": config.get("model_type") != "qwen3",
        f"rope type {rope_type!r} (only 'default')": rope_type != "default",
        "attention_bias": bool(config.get("attention_bias")),
        "sliding-window attention": bool(config.get("use_sliding_window"))
        or layer_types != {"full_attention"},
        f"hidden_act {config.get('hidden_act')!r} (only 'silu')": config.get("hidden_act", "silu") != "silu",
    }
    found = [name for name, present in problems.items() if present]
    if found:
        raise BadInput(f"model {model_path}: the embedded engine does not support {', '.join(found)}")
