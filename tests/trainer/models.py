"""Models and paths for tests."""

from pathlib import Path as FilePath

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from gpu_workers.trainer.data import Path


def tiny_config(*, tied: bool, vocab_size: int = 61) -> Qwen3Config:
    """An odd vocabulary, so that tensor parallelism has to pad it."""
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
    """Random weights; norms too, because ones would hide a mixed-up norm."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(hf)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model.to(dtype).eval()


def save_model(hf: Qwen3Config, folder: FilePath, dtype: torch.dtype = torch.float32) -> FilePath:
    make_model(hf, dtype).save_pretrained(folder)
    return folder


def random_path(
    seed: int,
    *,
    execution: str = "e",
    advantage: float = 1.0,
    length: int = 20,
    num_targets: int | None = None,
) -> Path:
    """A path whose later half are targets, sampled by nobody in particular."""
    rng = np.random.default_rng(seed)
    targets = np.arange(length // 2, length)
    return Path(
        execution_id=execution,
        advantage=advantage,
        num_execution_targets=num_targets or len(targets),
        tokens=rng.integers(0, 61, length),
        targets=targets,
        behaviour=rng.uniform(-6, -3, len(targets)).astype(np.float32),
    )
