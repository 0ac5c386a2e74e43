"""Extraction: every sampled token a target at most once, whatever the order of arrival."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.lifecycle import MicroStepKind
from gyre.trajectory.extraction import ROLES, Node, extract
from gyre.trajectory.packing import Item, pack


@st.composite
def trees(draw: st.DrawFn) -> list[Node]:
    """Random append-only trees with branches inside nodes."""
    nodes: list[Node] = []
    for index in range(draw(st.integers(1, 14))):
        parent = draw(st.sampled_from([None, *nodes])) if nodes else None
        size = draw(st.integers(1, 5))
        offset = 0
        if parent is not None:
            offset = draw(st.one_of(st.just(parent.num_tokens), st.integers(1, parent.num_tokens)))
        nodes.append(
            Node(
                id=f"n{index}",
                parent_id=parent.id if parent else None,
                parent_offset=offset,
                position=parent.position + offset if parent else 0,
                num_tokens=size,
                trainable=draw(st.booleans()),
                role=draw(st.sampled_from([*ROLES, "side"])),
            )
        )
    return nodes


@given(trees(), st.integers(1, 20))
def test_each_target_once_and_only_sampled(nodes: list[Node], max_paths: int) -> None:
    by_id = {node.id: node for node in nodes}
    paths = extract(nodes, max_paths=max_paths, seed="s")
    counted = Counter(target for path in paths for target in path.target_ids)
    assert all(count == 1 for count in counted.values())
    assert all(by_id[target].trainable and by_id[target].role in ROLES for target in counted)
    assert len(paths) <= max_paths
    for path in paths:
        assert path.num_targets == sum(by_id[t].num_tokens for t in path.target_ids) > 0
        assert path.num_tokens == by_id[path.leaf_id].position + by_id[path.leaf_id].num_tokens


@given(trees())
def test_without_a_cap_every_trainable_token_is_a_target(nodes: list[Node]) -> None:
    paths = extract(nodes, max_paths=len(nodes), seed="s")
    expected = {node.id for node in nodes if node.trainable and node.role in ROLES}
    assert {target for path in paths for target in path.target_ids} == expected


@given(trees(), st.integers(1, 5), st.randoms())
def test_independent_of_arrival_order(nodes: list[Node], cap: int, order: random.Random) -> None:
    shuffled = list(nodes)
    order.shuffle(shuffled)
    assert extract(shuffled, max_paths=cap, seed="x") == extract(nodes, max_paths=cap, seed="x")


@given(trees(), st.integers(1, 20))
def test_higher_roles_come_first(nodes: list[Node], cap: int) -> None:
    roles = [ROLES.index(path.role) for path in extract(nodes, max_paths=cap, seed="s")]
    assert roles == sorted(roles)


items = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), max_size=24)


@given(items, st.integers(10, 80))
def test_packing_covers_each_trajectory_exactly_once(sizes: list[tuple[int, int]], budget: int) -> None:
    given_items = [Item(f"t{i}", f"e{owner}", size) for i, (owner, size) in enumerate(sizes)]
    steps = pack(given_items, budget=budget)
    grad = Counter(t for s in steps if s.kind is MicroStepKind.GRAD for t in s.trajectory_ids)
    assert grad == Counter(item.trajectory_id for item in given_items)
    kinds = [step.kind for step in steps]
    assert kinds == sorted(kinds, key=[MicroStepKind.SCORE, MicroStepKind.GRAD].index)
    for step in steps:
        assert step.num_tokens <= budget or len(step.trajectory_ids) == 1


@given(items, st.integers(10, 80))
def test_an_execution_in_several_steps_is_scored_first(sizes: list[tuple[int, int]], budget: int) -> None:
    given_items = [Item(f"t{i}", f"e{owner}", size) for i, (owner, size) in enumerate(sizes)]
    owner_of = {item.trajectory_id: item.execution_id for item in given_items}
    steps = pack(given_items, budget=budget)
    places: dict[str, set[int]] = {}
    scored: set[str] = set()
    for number, step in enumerate(steps):
        for trajectory in step.trajectory_ids:
            if step.kind is MicroStepKind.SCORE:
                scored.add(trajectory)
            else:
                places.setdefault(owner_of[trajectory], set()).add(number)
    cut = {owner for owner, found in places.items() if len(found) > 1}
    assert scored == {item.trajectory_id for item in given_items if item.execution_id in cut}
