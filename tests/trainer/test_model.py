"""The Megatron model agrees with transformers, and weights convert both ways unchanged."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

from gpu_workers.trainer import hf_weights
from gpu_workers.trainer.megatron_model import PackedTokens, check_architecture
from gpu_workers.trainer.replica import Replica
from gyre.contracts.errors import BadInput
from gyre.settings.runfile import OptimizerSection
from gyre.trajectory.layout import lay_out
from tests.trainer.models import make_model, random_path, save_model, tiny_config

CPU = torch.device("cpu")


def test_logits_equal_transformers(hf: Qwen3Config, tmp_path: Path) -> None:
    model = make_model(hf)
    replica = loaded(hf, save_model(hf, tmp_path))
    # A fork after three tokens, a branch inside the second node, another root.
    paths = [[("a", 3), ("b", 7)], [("a", 3), ("c", 30)], [("a", 3), ("b", 4), ("d", 1)], [("e", 5)]]
    layout = lay_out(paths)
    tokens = torch.randint(0, hf.vocab_size, (layout.num_tokens,), generator=torch.Generator().manual_seed(1))
    rows = [torch.from_numpy(part) for part in layout.rows]
    positions = torch.zeros_like(tokens)
    for part in rows:
        positions[part] = torch.arange(len(part))
    ours = replica.policy(PackedTokens(tokens, positions, layout, torch.cat(rows), torch.cat(rows)))
    theirs = torch.cat([model(tokens[part][None]).logits[0] for part in rows])
    assert (ours - theirs).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_round_trip_to_the_bit(hf: Qwen3Config, tmp_path: Path, dtype: str) -> None:
    folder = save_model(hf, tmp_path, getattr(torch, dtype))
    replica = loaded(hf, folder, dtype)
    exported, stored = replica.export(), load_file(folder / "model.safetensors")
    assert exported is not None
    assert exported.keys() == stored.keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in stored.items())
    assert all(exported[name].dtype == tensor.dtype for name, tensor in stored.items())


@given(size=st.sampled_from([1, 2]), tied=st.booleans())
def test_sharding_and_back_is_the_identity(size: int, tied: bool) -> None:
    hf = tiny_config(tied=tied)
    named = hf_weights.select_weights(hf, make_model(hf).state_dict(), torch.float32)
    shards = [hf_weights.to_shard(hf, named, rank, size) for rank in range(size)]
    whole = hf_weights.from_shards(hf, shards)
    assert whole.keys() == named.keys()
    assert all(torch.equal(whole[name], named[name]) for name in named)


def test_packing_does_not_change_logprobs(replica: Replica) -> None:
    paths = [random_path(seed, length=5 + 7 * seed) for seed in range(4)]
    together = replica.forward(replica.pack(paths), 1.0).logprobs
    alone = torch.cat([replica.forward(replica.pack([path]), 1.0).logprobs for path in paths])
    assert (together - alone).abs().max() < 1e-12


def test_logprobs_and_entropy_are_at_the_temperature(replica: Replica) -> None:
    path = random_path(3)
    model = make_model(tiny_config(tied=True), torch.float64)
    logits = model(torch.from_numpy(path.tokens)[None]).logits[0].double() / 0.7
    expected = logits.log_softmax(-1)[path.targets - 1, path.tokens[path.targets]]
    found = replica.forward(replica.pack([path]), 0.7)
    entropy = torch.distributions.Categorical(logits=logits[path.targets - 1]).entropy()
    # transformers computes rotary angles in float32 even for a float64 model.
    assert (found.logprobs - expected).abs().max() < 1e-5
    assert (found.entropy - entropy).abs().max() < 1e-5


def test_a_missing_tensor_is_named(replica: Replica, tmp_path: Path) -> None:
    named = replica.export() or {}
    del named["model.layers.1.mlp.up_proj.weight"]
    save_file(named, tmp_path / "model.safetensors")
    with pytest.raises(BadInput, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        replica.load(str(tmp_path / "model.safetensors"), None)


def test_other_architectures_are_refused() -> None:
    hf = tiny_config(tied=True)
    check_architecture(hf, 2)
    with pytest.raises(BadInput, match="tensor_parallel = 3"):
        check_architecture(hf, 3)
    hf.attention_bias = True
    with pytest.raises(BadInput, match="attention_bias"):
        check_architecture(hf, 1)


def loaded(hf: Qwen3Config, folder: Path, dtype: str = "float32") -> Replica:
    replica = Replica(hf, dtype, OptimizerSection(), CPU)
    replica.load(str(folder / "model.safetensors"), None)
    return replica
