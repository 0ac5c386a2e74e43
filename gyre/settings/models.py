"""Whether a model directory can be trained, checked from its small files before anything is made."""

import json
from pathlib import Path
from typing import Any

from gyre.contracts.errors import BadInput

MODEL_TYPES = ("qwen3",)
"""Architectures that engine, trainer and transfer agree on."""
DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
"""Of ``config.json``: what tensor parallelism cuts into equal parts."""


def check_model(path: Path, context_tokens: int, tensor_parallel: int = 1) -> None:
    """Raise BadInput with one sentence unless ``path`` is a Hugging Face directory that Gyre can train,
    cut into ``tensor_parallel`` parts.
    """
    if not path.is_dir():
        raise BadInput(f"model.path = '{path}': no such directory")
    config = _read_json(path / "config.json")
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        allowed = ", ".join(MODEL_TYPES)
        raise BadInput(f"model.path = '{path}': model_type is {kind!r} (allowed: {allowed})")
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and context_tokens > positions:
        raise BadInput(f"model.context_tokens = {context_tokens}: the model has {positions} positions")
    if tensor_parallel > 1:
        _check_division(config, tensor_parallel)
    _check_weights(path)
    _check_tokenizer(path)


def _check_division(config: dict[str, Any], tensor_parallel: int) -> None:
    for key in DIVIDED:
        whole = config.get(key)
        if not isinstance(whole, int) or whole % tensor_parallel:
            raise BadInput(
                f"cells.tensor_parallel = {tensor_parallel} does not divide the model's {key} = {whole}"
            )


def _check_weights(path: Path) -> None:
    index = path / "model.safetensors.index.json"
    names = set(_read_json(index).get("weight_map", {}).values()) if index.exists() else {"model.safetensors"}
    missing = sorted(str(name) for name in names if not (path / str(name)).is_file())
    if missing:
        raise BadInput(f"model.path = '{path}': no {missing[0]} in it")


def _check_tokenizer(path: Path) -> None:
    if not (path / "tokenizer.json").is_file():
        raise BadInput(f"model.path = '{path}': no tokenizer.json in it")
    settings = _read_json(path / "tokenizer_config.json")
    if not settings.get("chat_template") and not (path / "chat_template.jinja").is_file():
        raise BadInput(f"model.path = '{path}': its tokenizer has no chat template")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise BadInput(f"model.path = '{path.parent}': no {path.name} in it") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None
