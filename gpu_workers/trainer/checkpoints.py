"""Policy versions as files in S3, in Hugging Face names; rows of Postgres vouch for them."""

import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config

from db import training
from db.object_store import BlobStore
from db.session import Database, transaction
from db.training import StoredVersion
from gpu_workers.trainer.hf_weights import read_safetensors, select_weights
from gpu_workers.trainer.megatron_model import DTYPES
from gpu_workers.transfer import payload_sha256


@dataclass(frozen=True)
class Fetched:
    """Local copies of a version's files; they are deleted when the context ends."""

    weights_file: str
    optimizer_file: str | None


def store_version(
    store: BlobStore,
    version: int,
    tensors: Mapping[str, torch.Tensor],
    optimizer: tuple[Mapping[str, torch.Tensor], int] | None,
) -> StoredVersion:
    """Upload weights and, unless None, optimizer state (tensors, steps). Writes no version row."""
    with tempfile.TemporaryDirectory(prefix="gyre-checkpoint-") as folder:
        weights_file = Path(folder, "model.safetensors")
        save_file(dict(tensors), weights_file, metadata={"format": "pt"})
        weights_key, optimizer_key = store.put_file(weights_file), None
        if optimizer is not None:
            file = Path(folder, "optimizer.safetensors")
            save_file(dict(optimizer[0]), file, metadata={"steps": str(optimizer[1])})
            optimizer_key = store.put_file(file)
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return StoredVersion(version, payload_sha256(tensors), weights_key, optimizer_key, num_bytes)


@contextmanager
def fetched(store: BlobStore, stored: StoredVersion) -> Generator[Fetched]:
    """Download and verify a version's files."""
    with tempfile.TemporaryDirectory(prefix="gyre-checkpoint-") as folder:
        weights_file, optimizer_file = Path(folder, "model.safetensors"), None
        store.get_file(stored.weights_key, weights_file)
        if stored.optimizer_key is not None:
            optimizer_file = Path(folder, "optimizer.safetensors")
            store.get_file(stored.optimizer_key, optimizer_file)
        yield Fetched(str(weights_file), str(optimizer_file) if optimizer_file else None)


def commit_initial_version(
    database: Database, store: BlobStore, run: str, model_dir: Path, dtype: str
) -> StoredVersion:
    """Make policy version 0 from a Hugging Face directory, unless it exists.

    Raises BadInput if a tensor is missing.
    """
    with transaction(database) as session:
        if existing := training.version_of(session, run, 0):
            return existing
    hf = Qwen3Config.from_pretrained(model_dir, local_files_only=True)
    tensors = select_weights(hf, read_safetensors(model_dir), DTYPES[dtype])
    stored = store_version(store, 0, tensors, None)
    with transaction(database) as session:
        return training.commit_initial_version(session, run, stored)
