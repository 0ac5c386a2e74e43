"""A tree has the gradients of its separate paths, in float64 to 1e-9 of their size."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_workers.trainer.data import TargetPath, pack
from gpu_workers.trainer.kernels import backward_kernel, forward_kernel, plain_backward, plain_forward
from gpu_workers.trainer.replica import Replica
from gyre.settings.runfile import LossSection, OptimizerSection
from gyre.trajectory.extraction import ExtractionNode
from tests.trainer.models import paths_of, random_nodes, save_model, separated, tiny_config
from tests.trajectory.test_extraction import trees

SECTION = LossSection(form="truncated")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Replica:
    """Make a replica in float64 for all examples of hypothesis; each resets its gradient."""
    folder: Path = save_model(tiny_config(tied=False), tmp_path_factory.mktemp("model"))
    made = Replica(tiny_config(tied=False), "float64", OptimizerSection(), CPU)
    made.load(str(folder / "model.safetensors"), None)
    return made


def gradients(
    replica: Replica, paths: list[TargetPath], section: LossSection = SECTION, temperature: float = 0.9
) -> dict[str, torch.Tensor]:
    replica.begin()
    replica.accumulate(paths, {}, section, temperature)
    return {name: tensor.clone() for name, tensor in (replica.gradients() or {}).items()}


def largest_error(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Return the largest error of a parameter's gradient, relative to that gradient's norm.

    Where a gradient is nothing but rounding, as of queries that see one key, the error is relative to 1e-5 of
    the whole gradient.
    """
    assert found.keys() == expected.keys()
    floor = 1e-5 * torch.stack([tensor.norm() for tensor in expected.values()]).norm()
    errors = [(found[name] - expected[name]).norm() / max(expected[name].norm(), floor) for name in expected]
    return max(error.item() for error in errors)


def prompted(nodes: list[ExtractionNode]) -> list[ExtractionNode]:
    """Make roots context: their first token has nothing before it that could predict it."""
    return [replace(n, trainable=n.trainable and n.parent_id is not None) for n in nodes]


@given(st.lists(trees().map(prompted), min_size=1, max_size=3), st.integers(0, 1 << 20))
def test_a_tree_has_the_gradient_of_its_paths(
    exact: Replica, forest: list[list[ExtractionNode]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    advantages = rng.normal(size=len(forest))
    paths = [
        path
        for number, nodes in enumerate(forest)
        for path in paths_of(nodes, rng, execution=f"e{number}", advantage=float(advantages[number]))
    ]
    if not paths:
        return
    expected = gradients(exact, separated(paths))
    assert any(tensor.any() for tensor in expected.values())
    assert largest_error(gradients(exact, paths), expected) < 1e-9


def test_two_answers_of_one_token(exact: Replica) -> None:
    """Each query sees a single key, so its gradient is nothing but rounding."""
    nodes = [
        ExtractionNode("p", None, 0, 0, 1, False, "main"),
        *(ExtractionNode(n, "p", 1, 1, 1, True, "main") for n in "ab"),
    ]
    paths = paths_of(nodes, np.random.default_rng(0))
    assert len(pack(paths, CPU, torch.float64).row.tokens) == 1
    assert largest_error(gradients(exact, paths), gradients(exact, separated(paths))) < 1e-9


def test_a_large_tree(exact: Replica) -> None:
    """Chains and blocks span several kernel blocks, and most tokens are shared."""
    rng = np.random.default_rng(5)
    paths = paths_of(random_nodes(rng, 30, max_tokens=200), rng)
    row = pack(paths, CPU, torch.float64).row
    assert len(row.tokens) < sum(len(path.tokens) for path in paths) / 2
    assert max(stop - start for start, stop in row.layout.chains) > 300
    assert largest_error(gradients(exact, paths), gradients(exact, separated(paths))) < 1e-9


def test_equal_siblings_stay_separate(exact: Replica) -> None:
    """Equal tokens sampled twice in one context are targets twice, each with its own log-probability."""
    prompt = ExtractionNode("p", None, 0, 0, 5, False, "main")
    siblings = [ExtractionNode(name, "p", 5, 5, 4, True, "main") for name in "ab"]
    first, second = paths_of([prompt, *siblings], np.random.default_rng(0))
    second = replace(second, tokens=first.tokens)
    row = pack([first, second], CPU, torch.float64).row
    assert len(row.tokens) == 5 + 3 + 3
    expected = gradients(exact, separated([first, second]))
    assert largest_error(gradients(exact, [first, second]), expected) < 1e-9


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries", [70, 1500])
def test_the_plain_kernels_equal_the_fused_ones(causal: bool, queries: int) -> None:
    assert_plain_is_fused(causal, queries, CPU, torch.float64, 1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [True, False])
def test_the_fused_kernels_of_cuda(causal: bool) -> None:
    """The plain kernels in the same type are the reference: bfloat16 keeps 8 bits."""
    assert_plain_is_fused(causal, 1500, torch.device("cuda"), torch.bfloat16, 0.05)


def assert_plain_is_fused(
    causal: bool, queries: int, device: torch.device, dtype: torch.dtype, tolerance: float
) -> None:
    """Compare the kernels; backward gets a log-sum-exp that covers more than its part, as in a merged row."""
    keys = queries if causal else 90
    rng = torch.Generator().manual_seed(0)
    q, grad, out = (torch.randn(2, 3, queries, 16, generator=rng).to(device, dtype) for _ in range(3))
    k, v = (torch.randn(2, 1, keys, 16, generator=rng).to(device, dtype) for _ in range(2))
    mixed, lse = forward_kernel(q)(q, k, v, causal, 0.25)
    expected, expected_lse = plain_forward(q, k, v, causal, 0.25)
    assert (mixed - expected).abs().max() < tolerance
    assert (lse - expected_lse).abs().max() < tolerance
    found = backward_kernel(q)(grad, q, k, v, out, lse + 1, causal, 0.25)
    parts = plain_backward(grad, q, k, v, out, lse + 1, causal, 0.25)
    for one, other in zip(found, parts, strict=True):
        assert (one - other).abs().max() < tolerance * max(1.0, other.abs().max().item())
