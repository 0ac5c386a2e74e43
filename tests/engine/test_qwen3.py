"""The forward pass against transformers in float32: within 1e-4 on logits of order 10."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from gpu_workers.engine.build import read_model
from gpu_workers.engine.kv import RunningCache
from gpu_workers.engine.qwen3 import Model
from tests.engine.conftest import CONTEXT, VOCAB, save_model

TOLERANCE = 1e-4


def make_cache(model: Model, rows: int, tokens: int) -> RunningCache:
    cache = RunningCache(model.shape, max_rows=8, max_tokens=CONTEXT, dtype=model.dtype, device=model.device)
    cache.reserve([0] * rows, tokens)
    return cache


def random_ids(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (count,), generator=generator).tolist()


def expected_logits(reference: Qwen3ForCausalLM, ids: list[int]) -> Tensor:
    with torch.no_grad():
        return reference(torch.tensor([ids])).logits[0]


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("chunks", [[57], [1, 56], [20, 20, 17]])
def test_prefill_in_chunks(model: Model, reference: tuple[Path, Qwen3ForCausalLM], chunks: list[int]) -> None:
    ids, cache, start = random_ids(57), make_cache(model, 1, 57), 0
    expected = expected_logits(reference[1], ids)
    for count in chunks:
        logits = model.prefill(cache.row(0), ids[start : start + count], start)
        start += count
        assert_close(logits[0], expected[start - 1])


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0], [1]])
def test_ragged_decode(model: Model, reference: tuple[Path, Qwen3ForCausalLM], rows: list[int]) -> None:
    prompts = [random_ids(length, seed=length) for length in (5, 41, 18)]
    cache = make_cache(model, 3, 64)
    for row, prompt in enumerate(prompts):
        model.prefill(cache.row(row), prompt[:-3], 0)
    for step in (3, 2, 1):
        positions = [len(prompts[row]) - step for row in rows]
        tokens = [prompts[row][position] for row, position in zip(rows, positions, strict=True)]
        logits = model.decode(cache.data, rows, tokens, positions)
        for index, row in enumerate(rows):
            assert_close(logits[index], expected_logits(reference[1], prompts[row])[positions[index]])


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": False},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "head_dim": 32},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ],
    ids=["untied", "no-gqa", "one-kv-head", "rope-theta"],
)
def test_variants(tmp_path: Path, changes: dict[str, object]) -> None:
    expected = expected_logits(save_model(tmp_path, seed=2, **changes), random_ids(30))
    variant = read_model(tmp_path, context_tokens=64, dtype="float32", device="cpu")
    cache = make_cache(variant, 1, 30)
    assert_close(variant.prefill(cache.row(0), random_ids(30)[:29], 0)[0], expected[28])
    assert_close(variant.decode(cache.data, [0], random_ids(30)[29:], [29])[0], expected[29])


def test_growth_keeps_cached_tokens(model: Model, reference: tuple[Path, Qwen3ForCausalLM]) -> None:
    ids, cache = random_ids(300), make_cache(model, 1, 10)
    model.prefill(cache.row(0), ids[:200], 0)
    cache.reserve([200, 0, 0], 300)
    cache.move(0, 2, 200)
    logits = model.prefill(cache.row(2), ids[200:], 200)
    assert_close(logits[0], expected_logits(reference[1], ids)[-1])


def test_bfloat16_stays_close(reference: tuple[Path, Qwen3ForCausalLM]) -> None:
    half = read_model(reference[0], context_tokens=64, dtype="bfloat16", device="cpu")
    cache = make_cache(half, 1, 30)
    logits = half.prefill(cache.row(0), random_ids(30), 0)[0].float()
    expected = expected_logits(reference[1], random_ids(30))[-1]
    assert logits.dtype == torch.float32
    assert torch.corrcoef(torch.stack((logits, expected)))[0, 1] > 0.999


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_equals_transformers(reference: tuple[Path, Qwen3ForCausalLM]) -> None:
    on_gpu = read_model(reference[0], context_tokens=64, dtype="float32", device="cuda")
    cache = make_cache(on_gpu, 1, 30)
    logits = on_gpu.prefill(cache.row(0), random_ids(30), 0)
    assert_close(logits[0].cpu(), expected_logits(reference[1], random_ids(30))[-1])
