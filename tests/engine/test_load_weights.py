"""Reading and fusing weights, and refusing unsupported variants."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen3ForCausalLM

from gpu_workers.engine.architecture import read_architecture
from gpu_workers.engine.load_weights import fuse, moved, read_directory
from gyre.contracts.errors import BadInput, TransferFailed

CPU = torch.device("cpu")


def test_sharded_directory_reads_as_one(reference: tuple[Path, Qwen3ForCausalLM], tmp_path: Path) -> None:
    tensors = read_directory(reference[0])
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, chosen in shards.items():
        save_file({name: tensors[name] for name in chosen}, tmp_path / file)
    index = {"weight_map": {name: file for file, chosen in shards.items() for name in chosen}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = read_directory(tmp_path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in names)


def test_fusing_copies_and_keeps_embeddings_tied(reference: tuple[Path, Qwen3ForCausalLM]) -> None:
    tensors = read_directory(reference[0])
    shape = read_architecture(reference[0])
    weights = fuse(shape, tensors, dtype=torch.float32, device=CPU)
    before = weights.layers[0].qkv.clone()
    for tensor in tensors.values():
        tensor.zero_()
    assert torch.equal(weights.layers[0].qkv, before)
    assert weights.lm_head is weights.embed
    again = moved(weights, CPU)
    assert again.lm_head is again.embed
    assert again.layers[1].down is weights.layers[1].down


@pytest.mark.parametrize("change", ["missing", "transposed"])
def test_wrong_tensors_are_named(reference: tuple[Path, Qwen3ForCausalLM], change: str) -> None:
    tensors = read_directory(reference[0])
    name = "model.layers.1.mlp.down_proj.weight"
    tensor = tensors.pop(name)
    if change == "transposed":
        tensors[name] = tensor.T
    with pytest.raises(TransferFailed, match=name):
        fuse(read_architecture(reference[0]), tensors, dtype=torch.float32, device=CPU)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "llama"}, "model_type 'llama'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope type 'yarn'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_unsupported_variants_are_refused(
    reference: tuple[Path, Qwen3ForCausalLM], tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    config = json.loads((reference[0] / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    with pytest.raises(BadInput, match=reason):
        read_architecture(tmp_path)


def test_directory_without_weights(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="weights cannot be read"):
        read_directory(tmp_path)
