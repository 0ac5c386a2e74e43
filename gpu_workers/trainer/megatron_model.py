"""Megatron Core's GPTModel for the Qwen3 architecture, over packed rows of trees.

Shapes: S tokens in the row, T targets, V the padded vocabulary, D channels per head.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn
from transformers import Qwen3Config

from gpu_workers.trainer.attention import TreeAttention, TreeParams
from gyre.contracts.errors import BadInput
from gyre.trajectory.layout import Layout

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True)
class PackedTokens:
    """The tokens of a forest in one row, each once, without padding; all tensors are int64."""

    tokens: Tensor
    """[S] token ids."""
    positions: Tensor
    """[S] position of each token in its own path."""
    layout: Layout
    """Which tokens see which."""
    rows: Tensor
    """[T] index of the token whose logits predict each target."""
    targets: Tensor
    """[T] token ids of the targets."""


class PositionRotary(nn.Module):
    """Computes rotary angles from each token's own position: GPTModel ignores ``position_ids`` under rope."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        # Always float32, as in transformers: engine and trainer must agree whatever the model's dtype is.
        self.frequencies = 1.0 / (
            theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
        )
        self.positions = torch.zeros(0)

    def get_rotary_seq_len(self, *_: Any, **__: Any) -> int:
        """Return S; GPTModel asks for it before it calls ``forward``."""
        return len(self.positions)

    def forward(self, *_: Any, **__: Any) -> Tensor:
        """Compute angles [S, 1, 1, D] for the tokens in ``positions``."""
        angles = torch.outer(self.positions.float(), self.frequencies.to(self.positions.device))
        return torch.cat((angles, angles), dim=-1)[:, None, None, :]


class PolicyModel(nn.Module):
    """GPTModel that computes logits only where a target is predicted.

    Selecting before the output layer saves most of the logits' memory: in agent rollouts most tokens are
    context.
    """

    def __init__(self, hf: Qwen3Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.gpt = _gpt_model(hf, dtype)
        self._row: PackedTokens | None = None
        self.gpt.output_layer.register_forward_pre_hook(self._select)

    def forward(self, row: PackedTokens) -> Tensor:
        """Compute this tensor-parallel rank's logits [T, V / tp], padded vocabulary included."""
        self._row, self.gpt.rotary_pos_emb.positions = row, row.positions
        # With "thd", its format for packed sequences, Megatron would slice the angles itself.
        params = TreeParams(qkv_format="sbhd", layout=row.layout)
        return self.gpt(row.tokens[None], row.positions[None], None, packed_seq_params=params)[0]

    def _select(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        assert self._row is not None
        return inputs[0][self._row.rows], *inputs[1:]


def check_architecture(hf: Any, tensor_parallel: int) -> None:
    """Raise BadInput for an architecture that this trainer does not compute exactly."""
    scaling = (getattr(hf, "rope_parameters", None) or {}).get("rope_type", "default")
    problems = {
        f"model_type is {hf.model_type!r}, not 'qwen3'": hf.model_type != "qwen3",
        f"rope_type is {scaling!r}": scaling != "default",
        "attention_bias is set": bool(getattr(hf, "attention_bias", False)),
        "sliding windows are used": bool(getattr(hf, "use_sliding_window", False)),
        f"hidden_act is {getattr(hf, 'hidden_act', None)!r}": getattr(hf, "hidden_act", None) != "silu",
    }
    found = [sentence for sentence, wrong in problems.items() if wrong]
    if found:
        raise BadInput(f"the trainer cannot train this model: {found[0]}")
    if hf.num_key_value_heads % tensor_parallel or hf.intermediate_size % tensor_parallel:
        raise BadInput(
            f"cells.tensor_parallel = {tensor_parallel} does not divide the model's heads and width"
        )


def padded_vocab(vocab_size: int, tensor_parallel: int) -> int:
    """Round the vocabulary up: Megatron shards it into equal parts."""
    return -(-vocab_size // tensor_parallel) * tensor_parallel


def transformer_config(hf: Any, dtype: torch.dtype) -> TransformerConfig:
    """Build Megatron's configuration, without fusions: their kernels need CUDA and Apex."""
    return TransformerConfig(
        num_layers=hf.num_hidden_layers,
        hidden_size=hf.hidden_size,
        num_attention_heads=hf.num_attention_heads,
        num_query_groups=hf.num_key_value_heads,
        kv_channels=hf.head_dim,
        ffn_hidden_size=hf.intermediate_size,
        normalization="RMSNorm",
        layernorm_epsilon=hf.rms_norm_eps,
        activation_func=F.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        qk_layernorm=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        use_cpu_initialization=True,  # in fact none, see the next line: every weight is loaded
        perform_initialization=False,
        calculate_per_token_loss=True,  # gradients are summed over replicas, never averaged
        persist_layer_norm=False,
        apply_rope_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        cuda_graph_scope=[],  # its default is deprecated and warns
    )


def _gpt_model(hf: Any, dtype: torch.dtype) -> GPTModel:
    spec: Any = get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = TreeAttention
    spec.submodules.mlp.params["ffn_hidden_size"] = hf.intermediate_size
    tensor_parallel = parallel_state.get_tensor_model_parallel_world_size()
    model: Any = GPTModel(
        config=transformer_config(hf, dtype),
        transformer_layer_spec=spec,
        vocab_size=padded_vocab(hf.vocab_size, tensor_parallel),
        max_sequence_length=hf.max_position_embeddings,
        share_embeddings_and_output_weights=hf.tie_word_embeddings,
        position_embedding_type="rope",
    )
    model.rotary_pos_emb = PositionRotary(hf.head_dim, hf.rope_parameters["rope_theta"])
    return model.to(dtype)  # for float64, ``params_dtype`` alone would leave the norms in float32
