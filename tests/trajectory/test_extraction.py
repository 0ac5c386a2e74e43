"""Extraction: every sampled token is a target at most once, in any order of arrival."""

import random
from collections import Counter
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.roles import TRAINED_ROLES
from gyre.trajectory.extraction import ExtractionNode, extract


@st.composite
def trees(draw: st.DrawFn) -> list[ExtractionNode]:
    """Draw append-only trees with branches inside nodes."""
    nodes: list[ExtractionNode] = []
    for index in range(draw(st.integers(1, 14))):
        parent = draw(st.sampled_from([None, *nodes])) if nodes else None
        size = draw(st.integers(1, 5))
        offset = 0
        if parent is not None:
            offset = draw(st.one_of(st.just(parent.num_tokens), st.integers(1, parent.num_tokens)))
        nodes.append(
            ExtractionNode(
                id=f"n{index}",
                parent_id=parent.id if parent else None,
                parent_offset=offset,
                position=parent.position + offset if parent else 0,
                num_tokens=size,
                trainable=draw(st.booleans()),
                role=draw(st.sampled_from([*TRAINED_ROLES, "side"])),
            )
        )
    return nodes


@given(trees(), st.integers(1, 20))
def test_each_target_is_sampled_and_occurs_once(nodes: list[ExtractionNode], max_paths: int) -> None:
    by_id = {node.id: node for node in nodes}
    paths = extract(nodes, max_paths=max_paths, seed="s")
    counted = Counter(target for path in paths for target in path.target_ids)
    assert all(count == 1 for count in counted.values())
    assert all(by_id[target].trainable and by_id[target].role in TRAINED_ROLES for target in counted)
    assert len(paths) <= max_paths
    for path in paths:
        assert path.num_targets == sum(by_id[t].num_tokens for t in path.target_ids) > 0
        assert path.num_tokens == by_id[path.leaf_id].position + by_id[path.leaf_id].num_tokens


@given(trees())
def test_without_a_cap_every_trainable_token_is_a_target(nodes: list[ExtractionNode]) -> None:
    paths = extract(nodes, max_paths=len(nodes), seed="s")
    expected = {node.id for node in nodes if node.trainable and node.role in TRAINED_ROLES}
    assert {target for path in paths for target in path.target_ids} == expected


@given(trees(), st.integers(1, 5), st.randoms())
def test_paths_do_not_depend_on_arrival_order(
    nodes: list[ExtractionNode], cap: int, order: random.Random
) -> None:
    shuffled = list(nodes)
    order.shuffle(shuffled)
    assert extract(shuffled, max_paths=cap, seed="x") == extract(nodes, max_paths=cap, seed="x")


@given(trees(), st.integers(1, 20))
def test_the_highest_role_that_has_unmasked_tokens_comes_next(nodes: list[ExtractionNode], cap: int) -> None:
    by_id = {node.id: node for node in nodes}
    left = {node.id for node in nodes if node.trainable and node.role in TRAINED_ROLES}
    for path in extract(nodes, max_paths=cap, seed="s"):
        assert path.role == min((by_id[name].role for name in left), key=TRAINED_ROLES.index)
        assert path.role in {by_id[name].role for name in path.target_ids}
        left -= set(path.target_ids)
    assert not left or len(extract(nodes, max_paths=cap, seed="s")) == cap


@given(trees(), st.integers(1, 20))
def test_the_whole_path_is_masked(nodes: list[ExtractionNode], cap: int) -> None:
    """Every trainable node on a path is its target or was one before, so no later path trains it."""
    by_id = {node.id: node for node in nodes}
    done: set[str] = set()
    for path in extract(nodes, max_paths=cap, seed="s"):
        whole = {name for name, taken in walk(by_id, path.leaf_id) if taken == by_id[name].num_tokens}
        trainable = {name for name in whole if by_id[name].trainable and by_id[name].role in TRAINED_ROLES}
        assert set(path.target_ids) == trainable - done
        done |= trainable


def walk(by_id: dict[str, ExtractionNode], leaf: str) -> Iterator[tuple[str, int]]:
    """Yield (node, how many of its tokens are on the path) from a leaf to its root."""
    name, taken = leaf, by_id[leaf].num_tokens
    while True:
        yield name, taken
        node = by_id[name]
        if node.parent_id is None:
            return
        name, taken = node.parent_id, node.parent_offset


@given(trees(), st.integers(1, 5), st.text(max_size=3))
def test_the_same_seed_gives_the_same_paths(nodes: list[ExtractionNode], cap: int, seed: str) -> None:
    assert extract(nodes, max_paths=cap, seed=seed) == extract(nodes, max_paths=cap, seed=seed)


def fork(sizes: dict[str, int]) -> list[ExtractionNode]:
    """Build a shared answer of 50 tokens, followed by an answer of each size."""
    root = ExtractionNode("root", None, 0, 0, 50, trainable=True, role="main")
    behind = [
        ExtractionNode(name, "root", 50, 50, size, trainable=True, role="main")
        for name, size in sizes.items()
    ]
    side = ExtractionNode("side", None, 0, 0, 10_000, trainable=True, role="side")
    context = ExtractionNode("context", "root", 50, 50, 10_000, trainable=False, role="main")
    return [root, *behind, side, context]


def test_a_leaf_is_drawn_in_proportion_to_its_unmasked_tokens() -> None:
    """The shared 50 count for each leaf at first (also for one of context only), then for none."""
    sizes = {"a": 10, "b": 40, "c": 150}
    draws = [extract(fork(sizes), max_paths=2, seed=str(number)) for number in range(4000)]
    first = Counter(paths[0].leaf_id for paths in draws)
    weights = {name: size + 50 for name, size in sizes.items()} | {"context": 50}
    for name, weight in weights.items():
        expected = weight / sum(weights.values())
        # Five standard errors: these seeds are fixed, so this holds always or never.
        assert abs(first[name] / 4000 - expected) < 5 * (expected * (1 - expected) / 4000) ** 0.5
    after_c = Counter(paths[1].leaf_id for paths in draws if paths[0].leaf_id == "c")
    total = sum(after_c.values())
    assert set(after_c) == {"a", "b"}
    assert abs(after_c["b"] / total - 40 / 50) < 5 * (0.8 * 0.2 / total) ** 0.5


def test_a_long_execution_costs_nodes_times_paths() -> None:
    """Counted, not timed: each node of 1,000 turns, each asked twice, is hashed as often as one of 20."""

    class Counting(str):
        num_hashed = 0

        def __hash__(self) -> int:
            Counting.num_hashed += 1
            return super().__hash__()

    def hashes_per_node(turns: int) -> float:
        nodes: list[ExtractionNode] = []
        for turn in range(turns):
            parent = nodes[-2] if nodes else None
            place = (None, 0, 0) if parent is None else (parent.id, 10, parent.position + 10)
            for kind in ("answer", "again"):
                nodes.append(
                    ExtractionNode(Counting(f"{kind}{turn}"), *place, 10, trainable=True, role="main")
                )
        Counting.num_hashed = 0
        assert len(extract(nodes, max_paths=5, seed="s")) == 5
        return Counting.num_hashed / len(nodes)

    assert hashes_per_node(1000) < 1.5 * hashes_per_node(20)
