"""A packed row against its definition: every token attends to exactly the path to it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gyre.trajectory.layout import Layout, Segments, head, lay_out, segments_to
from tests.trajectory.test_extraction import trees


@st.composite
def forests(draw: st.DrawFn) -> list[Segments]:
    """Draw paths to nodes of some trees, each cut somewhere."""
    found = list[Segments]()
    for number, nodes in enumerate(draw(st.lists(trees(), min_size=1, max_size=3))):
        by_id = {node.id: node for node in nodes}
        for leaf in draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=6, unique=True)):
            path = [(f"{number}/{name}", count) for name, count in segments_to(leaf.id, by_id)]
            found.append(head(path, draw(st.integers(1, sum(count for _, count in path)))))
    return found


def tokens_of(path: Segments) -> list[tuple[str, int]]:
    return [(node, offset) for node, count in path for offset in range(count)]


def attended(layout: Layout) -> np.ndarray:
    """Return [S, S]: how often a token (row) attends to another (column)."""
    matrix = np.zeros((layout.num_tokens, layout.num_tokens), int)
    for start, stop in layout.chains:
        matrix[start:stop, start:stop] += np.tri(stop - start, dtype=int)
    for start, stop, first, last in layout.blocks:
        matrix[start:stop, first:last] += 1
    return matrix


@given(forests())
def test_every_token_is_in_the_row_once(paths: list[Segments]) -> None:
    layout = lay_out(paths)
    placed = dict[tuple[str, int], int]()
    for path, rows in zip(paths, layout.rows, strict=True):
        for token, row in zip(tokens_of(path), rows.tolist(), strict=True):
            assert placed.setdefault(token, row) == row
    assert sorted(placed.values()) == list(range(layout.num_tokens))
    assert sorted(layout.order) == list(range(len(paths)))


@given(forests())
def test_a_token_attends_to_the_path_to_it_once_and_to_nothing_else(paths: list[Segments]) -> None:
    layout = lay_out(paths)
    expected = np.zeros((layout.num_tokens, layout.num_tokens), int)
    for rows in layout.rows:
        for place, row in enumerate(rows):
            expected[row, rows[: place + 1]] = 1
    assert (attended(layout) == expected).all()


@given(forests())
def test_there_is_one_chain_per_leaf(paths: list[Segments]) -> None:
    layout = lay_out(paths)
    last = {int(rows[-1]) for rows in layout.rows}
    inner = {int(a) for rows in layout.rows for a in rows[:-1]}
    assert len(layout.chains) == len(last - inner)
    assert sorted(layout.chains) == layout.chains
    assert sum(stop - start for start, stop in layout.chains) == layout.num_tokens


def test_side_branches_do_not_nest() -> None:
    """In a trunk with a branch after each node, the trunk is one chain and each branch attends to it."""
    trunk = [(f"n{i}", 10) for i in range(20)]
    paths = [[*trunk[:i], (f"branch {i}", 5)] for i in range(1, 20)] + [trunk]
    layout = lay_out(paths)
    assert layout.chains[0] == (0, 200)
    assert [(b.first, b.last) for b in layout.blocks] == [(0, 10 * i) for i in range(19, 0, -1)]
