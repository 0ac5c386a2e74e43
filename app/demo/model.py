"""The demo's policy: Qwen3 architecture with 0.9 M parameters, initialized on the spot."""

from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from app.demo.recipe import CONTEXT_TOKENS
from app.demo.tokenizer import END_OF_TEXT, IM_END, token_id

VOCABULARY_MULTIPLE = 64
"""The embedding's rows are padded to a multiple of this, which tensor parallel sizes 2 and 4 divide."""


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Build a float32 model from the seed alone, without touching the global random generator."""
    rows = -(-len(tokenizer) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    config = Qwen3Config(
        vocab_size=rows,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=token_id(tokenizer, IM_END),
        pad_token_id=token_id(tokenizer, END_OF_TEXT),
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        eos_token_id=token_id(tokenizer, IM_END),
        pad_token_id=token_id(tokenizer, END_OF_TEXT),
    )
    return model


def save_model(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a Hugging Face folder: config, safetensors, and the tokenizer with its chat template."""
    # Its bar, for one file of three megabytes, would interfere with the demo's own.
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
