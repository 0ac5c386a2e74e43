"""Properties of the prefix tree."""

from collections.abc import Iterator, ValuesView
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.lifecycle import NodeKind
from gyre.trajectory.arrays import as_ids
from gyre.trajectory.tree import Node, Point, PrefixTree

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


def insert(tree: PrefixTree, base: Point | None, ids: list[int], kind: NodeKind = NodeKind.CONTEXT) -> Point:
    """Place a context, or append a sampled run, which is never shared; return where it ends."""
    placed = tree.place(base, as_ids(ids)) if kind == NodeKind.CONTEXT else None
    point, rest = (placed.point, placed.rest) if placed else (base, as_ids(ids))
    if not len(rest):
        assert point is not None
        return point
    node = Node(tree.next_index, point, tree.depth(point), kind, rest)
    tree.append(node)
    return node.end


def leaves(tree: PrefixTree) -> list[Node]:
    """Return the nodes whose end has no child."""
    nodes = [tree[index] for index in range(len(tree))]
    continued = {node.parent for node in nodes}
    return [node for node in nodes if node.end not in continued]


def trie_size(inserted: list[list[int]]) -> int:
    return len({tuple(ids[: n + 1]) for ids in inserted for n in range(len(ids))})


@given(sequences)
def test_paths_are_what_was_inserted_and_each_token_is_stored_once(inserted: list[list[int]]) -> None:
    tree = PrefixTree()
    ends = [insert(tree, None, ids) for ids in inserted]
    assert [tree.path_ids(end).tolist() for end in ends] == inserted
    assert tree.num_tokens == trie_size(inserted)


@given(sequences, st.randoms(use_true_random=False))
def test_order_does_not_change_the_paths(inserted: list[list[int]], random) -> None:
    def paths(order: list[list[int]]) -> set[tuple[int, ...]]:
        tree = PrefixTree()
        for ids in order:
            insert(tree, None, ids)
        return {tuple(tree.path_ids(leaf.end).tolist()) for leaf in leaves(tree)}

    shuffled = random.sample(inserted, len(inserted))
    prefixes = {tuple(a[:n]) for a in inserted for n in range(len(a))}
    assert paths(inserted) == paths(shuffled) == {tuple(a) for a in inserted} - prefixes


@given(
    st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 1), min_size=1, max_size=5)), max_size=20)
)
def test_conversations_keep_every_sampled_run(turns: list[tuple[int, list[int]]]) -> None:
    """Calls branch from any earlier answer; sampled siblings stay separate and all paths stay exact."""
    tree, ends, expected = PrefixTree(), [], []
    for number, (which, ids) in enumerate(turns):
        base = ends[which % len(ends)] if ends and which else None
        before = tree.path_ids(base).tolist()
        context = insert(tree, base, ids)
        answer = insert(tree, context, [number % 2, 1], NodeKind.SAMPLED)
        ends.append(answer)
        expected.append([*before, *ids, number % 2, 1])
        assert [tree.path_ids(end).tolist() for end in ends] == expected
    sampled = [n for n in (tree[i] for i in range(len(tree))) if n.kind == NodeKind.SAMPLED]
    assert len(sampled) == len(turns)


def test_the_longest_path_goes_through_a_branch_inside_a_node() -> None:
    """An answer to a context that ends inside a node continues that context, not the rest of the node."""
    tree = PrefixTree()
    insert(tree, None, [1, 2, 3, 4, 5])
    inside = insert(tree, None, [1, 2, 3])
    assert inside == Point(0, 3)
    answer = insert(tree, inside, [4, 7, 8], NodeKind.SAMPLED)
    placed = tree.place(None, as_ids([1, 2, 3, 4, 7, 9]))
    assert placed.point == Point(answer.node, 2)
    assert placed.rest.tolist() == [9]


def test_a_context_is_placed_only_below_its_base() -> None:
    tree = PrefixTree()
    first = insert(tree, None, [1, 2])
    answer = insert(tree, first, [3], NodeKind.SAMPLED)
    assert tree.place(answer, as_ids([1, 2])).rest.tolist() == [1, 2]


def test_a_node_that_does_not_fit_is_refused() -> None:
    tree = PrefixTree([Node(0, None, 0, NodeKind.CONTEXT, as_ids([1, 2]))])
    for node in (
        Node(0, None, 0, NodeKind.CONTEXT, as_ids([1])),
        Node(1, Point(0, 1), 2, NodeKind.CONTEXT, as_ids([1])),
        Node(1, Point(0, 3), 3, NodeKind.CONTEXT, as_ids([1])),
        Node(1, None, 0, NodeKind.CONTEXT, as_ids([])),
    ):
        with pytest.raises(ValueError, match=r"fit|offset"):
            tree.append(node)
    assert len(tree) == 1


def test_a_long_conversation_costs_its_new_tokens() -> None:
    """Each turn of 100 tokens adds 100 tokens, however long the path is."""
    tree, end, sizes = PrefixTree(), None, []
    for turn in range(50):
        end = insert(tree, insert(tree, end, [turn] * 60), [turn] * 40, NodeKind.SAMPLED)
        sizes.append(tree.num_tokens)
    assert {after - before for before, after in pairwise(sizes)} == {100}
    assert len(leaves(tree)) == 1


class Counted(dict[int, Node]):
    """Counts how often all nodes are iterated over."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return super().__iter__()

    def values(self) -> ValuesView[Node]:
        self.passes += 1
        return super().values()


def test_next_index_and_number_of_tokens_are_not_recounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call asks for both, however large the tree is."""
    tree, end = PrefixTree(), None
    for turn in range(20):
        end = insert(tree, insert(tree, end, [turn, turn]), [turn], NodeKind.SAMPLED)
    counted = Counted({index: tree[index] for index in range(len(tree))})
    monkeypatch.setattr(tree, "_nodes", counted)
    assert (tree.next_index, tree.num_tokens) == (40, 60)
    tree.append(Node(99, end, 60, NodeKind.CONTEXT, as_ids([1, 2])))
    assert (tree.next_index, tree.num_tokens) == (100, 62)
    assert counted.passes == 0
