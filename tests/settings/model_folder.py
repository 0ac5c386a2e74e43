"""The smallest model directory that passes every check."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

CONFIG = {
    "model_type": "qwen3",
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 12,
}


def write_model(folder: Path) -> Path:
    """Write a valid model directory to ``folder`` and return it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file({"norm.weight": np.ones(4, dtype=np.float32)}, folder / "model.safetensors")
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return folder
