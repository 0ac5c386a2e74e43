"""The prefix cache returns exactly what was stored for a prefix, and stays within its limit."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_workers.engine.architecture import Architecture
from gpu_workers.engine.prefix import BLOCK, PrefixCache

SHAPE = Architecture(
    vocab_size=4, hidden=8, intermediate=8, layers=2, heads=2, kv_heads=2, head_dim=3,
    norm_eps=1e-6, rope_theta=1e4, tied_embeddings=True,
)  # fmt: skip
BYTES_PER_BLOCK = 4 * SHAPE.layers * 2 * SHAPE.kv_heads * BLOCK * SHAPE.head_dim
CAPACITY = 8 * BLOCK


def make_cache(blocks: int) -> PrefixCache:
    return PrefixCache(
        SHAPE, max_bytes=blocks * BYTES_PER_BLOCK, dtype=torch.float32, device=torch.device("cpu")
    )


def kv_of(tokens: list[int]) -> torch.Tensor:
    """Return a row whose KV at each position is a function of the tokens up to it, as in a model."""
    row = torch.zeros(SHAPE.layers, 2, SHAPE.kv_heads, CAPACITY, SHAPE.head_dim)
    state = 0
    for position, token in enumerate(tokens):
        state = hash((state, token)) % 100_003
        row[..., position, :] = torch.arange(row[..., 0, :].numel()).view_as(row[..., 0, :]) + state
    return row


def common_blocks(one: list[int], other: list[int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count // BLOCK


# Sequences of few different blocks, so that paths share, branch and repeat.
sequences = st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=7).map(
    lambda kinds: [kind for kind in kinds for _ in range(BLOCK)]
)
ragged = st.tuples(sequences, st.integers(0, BLOCK - 1)).map(lambda pair: pair[0][: len(pair[0]) - pair[1]])


@settings(deadline=None)
@given(st.integers(0, 12), st.lists(ragged, min_size=1, max_size=20))
def test_loads_what_was_stored(blocks: int, stored: list[list[int]]) -> None:
    cache = make_cache(blocks)
    for index, tokens in enumerate(stored):
        row = torch.full_like(kv_of([]), -1.0)
        length = cache.load(tokens, row)
        assert length % BLOCK == 0
        assert length < len(tokens)
        known = max((common_blocks(tokens, before) for before in stored[:index]), default=0)
        assert length <= known * BLOCK
        assert torch.equal(row[..., :length, :], kv_of(tokens)[..., :length, :])
        assert (row[..., length:, :] == -1).all()
        cache.store(tokens, kv_of(tokens))
        assert len(cache) <= blocks
        assert cache.num_bytes <= blocks * BYTES_PER_BLOCK


@settings(deadline=None)
@given(st.lists(ragged, min_size=1, max_size=12))
def test_without_pressure_nothing_is_forgotten(stored: list[list[int]]) -> None:
    cache = make_cache(1000)
    for tokens in stored:
        cache.store(tokens, kv_of(tokens))
    for tokens in stored:
        assert cache.load([*tokens, 3], kv_of([])) == len(tokens) // BLOCK * BLOCK


def test_the_least_recently_used_branch_goes_first() -> None:
    trunk, left, right, new = ([kind] * BLOCK for kind in range(4))
    cache = make_cache(3)
    cache.store(trunk + left, kv_of(trunk + left))
    cache.store(trunk + right, kv_of(trunk + right))
    assert cache.load([*trunk, *left, 9], kv_of([])) == 2 * BLOCK
    cache.store(trunk + new, kv_of(trunk + new))
    assert cache.load([*trunk, *right, 9], kv_of([])) == BLOCK
    assert cache.load([*trunk, *left, 9], kv_of([])) == 2 * BLOCK
    assert cache.load([*trunk, *new, 9], kv_of([])) == 2 * BLOCK


def test_clear_forgets_and_frees() -> None:
    cache = make_cache(100)
    cache.store([1] * 40, kv_of([1] * 40))
    assert cache.num_bytes > 0
    cache.clear()
    assert (len(cache), cache.num_bytes) == (0, 0)
    assert cache.load([1] * 40, kv_of([])) == 0
    cache.store([1] * 40, kv_of([1] * 40))
    assert cache.load([1] * 40, kv_of([])) == 32
