"""Check of a model directory by its small files, before anything is started."""

import json
from pathlib import Path
from typing import Any, cast

from gyre.contracts.errors import BadInput

MODEL_TYPES = ("qwen3",)
"""Architectures that engine, trainer and transfer all support."""
DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
"""Keys of ``config.json`` whose values tensor parallelism divides."""

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""Longest header that the safetensors library accepts."""


def check_model(path: Path, context_tokens: int, tensor_parallel: int = 1) -> None:
    """Raise BadInput unless ``path`` is a Hugging Face directory that Gyre can train on these many ranks."""
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
    for key in DIVIDED if tensor_parallel > 1 else ():
        whole = config.get(key)
        if not isinstance(whole, int) or whole % tensor_parallel:
            raise BadInput(
                f"cells.tensor_parallel = {tensor_parallel} does not divide the model's {key} = {whole}"
            )
    _check_weights(path)
    _check_tokenizer(path)


def _check_weights(path: Path) -> None:
    for name in _weight_files(path):
        if not (path / name).is_file():
            raise BadInput(f"model.path = '{path}': no {name} in it")
        if problem := _safetensors_problem(path / name):
            raise BadInput(f"{path / name}: {problem}")


def _weight_files(path: Path) -> list[str]:
    index = path / "model.safetensors.index.json"
    if not index.exists():
        return ["model.safetensors"]
    files = _read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise BadInput(f"{index}: its weight_map names no file")
    return sorted({str(name) for name in cast("dict[str, Any]", files).values()})


def _safetensors_problem(path: Path) -> str | None:
    """Return what is wrong with a safetensors file, judged by its header and size, or None.

    A file is the header's length in 8 bytes, the header in JSON, and the tensors without gaps.
    """
    try:
        num_bytes = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if not 0 < length <= min(num_bytes - LENGTH_BYTES, MAX_HEADER_BYTES):
                return f"its {num_bytes} bytes are not a safetensors file, or it was cut short"
            header = json.loads(file.read(length))
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return "its safetensors header cannot be read"
    if not ends:
        return "it holds no tensor"
    wanted = LENGTH_BYTES + length + max(ends)
    return None if wanted == num_bytes else f"it has {num_bytes} bytes where its header describes {wanted}"


def _check_tokenizer(path: Path) -> None:
    if not (path / "tokenizer.json").is_file():
        raise BadInput(f"model.path = '{path}': no tokenizer.json in it")
    # Imported here, because only commands that check a model should wait for it.
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(path / "tokenizer.json"))
    except Exception as error:  # the library raises nothing narrower
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{path / 'tokenizer.json'}: not a tokenizer: {reason}") from None
    settings = _read_json(path / "tokenizer_config.json")
    if not settings.get("chat_template") and not (path / "chat_template.jinja").is_file():
        raise BadInput(f"model.path = '{path}': its tokenizer has no chat template")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise BadInput(f"model.path = '{path.parent}': no {path.name} in it") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise BadInput(f"{path}: it must hold a JSON object")
    return cast("dict[str, Any]", document)
