"""Building an engine from its boot document."""

from collections.abc import Callable
from pathlib import Path

import torch

from gpu_workers.engine.architecture import read_architecture
from gpu_workers.engine.kv import RunningCache
from gpu_workers.engine.load_weights import fuse, read_directory
from gpu_workers.engine.prefix import PrefixCache
from gpu_workers.engine.qwen3 import Model
from gpu_workers.engine.requests import Generation
from gpu_workers.engine.scheduler import Scheduler
from gyre.contracts.boot import EngineBoot
from gyre.contracts.errors import BadInput

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PREFIX_BYTES = 256 << 20
"""Limit of the prefix cache: over 100,000 tokens of a tiny model, and little next to a real model."""


def read_model(model_path: Path, *, context_tokens: int, dtype: str, device: str) -> Model:
    """Load a model. Raises BadInput for a folder, a dtype or a device that cannot be used."""
    if dtype not in _DTYPES:
        raise BadInput(f"dtype {dtype!r} is not one of {', '.join(_DTYPES)}")
    if device != "cpu" and not device.startswith("cuda"):
        raise BadInput(f"device {device!r} is neither 'cpu' nor 'cuda'")
    if device != "cpu" and not torch.cuda.is_available():
        raise BadInput(f"device {device!r} was requested, but torch finds no CUDA device")
    shape = read_architecture(model_path)
    kind, place = _DTYPES[dtype], torch.device(device)
    weights = fuse(shape, read_directory(model_path), dtype=kind, device=place)
    return Model(shape, weights, max_tokens=context_tokens, dtype=kind, device=place)


def build_scheduler(boot: EngineBoot, notify: Callable[[list[Generation]], None]) -> Scheduler:
    """Build the scheduler of ``boot`` without starting it. Raises BadInput as ``read_model`` does."""
    model = read_model(
        Path(boot.model_path), context_tokens=boot.context_tokens, dtype=boot.dtype, device=boot.device
    )
    kind, place = _DTYPES[boot.dtype], torch.device(boot.device)
    cache = RunningCache(
        model.shape, max_rows=boot.max_batch, max_tokens=boot.context_tokens, dtype=kind, device=place
    )
    prefixes = PrefixCache(model.shape, max_bytes=PREFIX_BYTES, dtype=kind, device=place)
    return Scheduler(
        model, cache, prefixes, version=boot.weight_version, max_batch=boot.max_batch, notify=notify
    )
