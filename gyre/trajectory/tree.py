"""The prefix tree of one attempt: nodes are runs of tokens that are appended and never split or changed.

A branch inside a node is a child with a smaller ``parent_offset``. A context is placed by token identity:
tokens that the tree already holds are shared, and only the rest becomes a node.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gyre.contracts.lifecycle import NodeKind
from gyre.trajectory.arrays import Ids, as_ids, common_prefix


@dataclass(frozen=True, slots=True)
class Point:
    """The position after the first ``offset`` tokens of a node; ``offset`` is at least 1."""

    node: int
    offset: int


@dataclass(frozen=True, slots=True)
class Node:
    """A run of ids that follow ``parent`` (None for a root); ``position`` is the depth of the first one."""

    index: int
    parent: Point | None
    position: int
    kind: NodeKind
    token_ids: Ids

    @property
    def end(self) -> Point:
        return Point(self.index, len(self.token_ids))


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a context goes: it shares the path to ``point`` (None: shares nothing), and ``rest`` is new."""

    point: Point | None
    rest: Ids


class PrefixTree:
    """A tree that only grows by ``append``, so that a reader never sees a path that was not committed."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._nodes: dict[int, Node] = {}
        self._children: defaultdict[int | None, list[int]] = defaultdict(list)
        self._next_index = self._num_tokens = 0
        for node in nodes:
            self.append(node)

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, index: int) -> Node:
        return self._nodes[index]

    @property
    def next_index(self) -> int:
        return self._next_index

    @property
    def num_tokens(self) -> int:
        """Tokens in all nodes; shared ones count once."""
        return self._num_tokens

    def append(self, node: Node) -> None:
        """Add a root, or a node below an earlier one. Raises ValueError if it does not fit there."""
        expected = 0 if node.parent is None else self.depth(node.parent)
        if node.index in self._nodes or node.position != expected or not len(node.token_ids):
            raise ValueError(f"node {node.index} does not fit the tree at position {node.position}")
        self._nodes[node.index] = node
        self._next_index = max(self._next_index, node.index + 1)
        self._num_tokens += len(node.token_ids)
        self._children[node.parent.node if node.parent else None].append(node.index)

    def depth(self, point: Point | None) -> int:
        """Return the number of tokens on the path to a point."""
        if point is None:
            return 0
        node = self._nodes[point.node]
        if not 1 <= point.offset <= len(node.token_ids):
            raise ValueError(f"node {point.node} has no offset {point.offset}")
        return node.position + point.offset

    def path_ids(self, point: Point | None) -> Ids:
        """Return all tokens from the root to a point, shape (depth,)."""
        pieces: list[Ids] = []
        while point is not None:
            node = self._nodes[point.node]
            pieces.append(node.token_ids[: point.offset])
            point = node.parent
        return np.concatenate(pieces[::-1]) if pieces else as_ids([])

    def place(self, base: Point | None, ids: Ids) -> Placement:
        """Find the longest path below ``base`` that ``ids`` share; the rest is new.

        Visits each node at most once. Two paths with the same tokens exist only through sampled siblings,
        which stay separate because each has its own log-probabilities.
        """
        best, best_used = base, 0
        todo = [(base, 0)] if base else self._entered(None, 0, 0, 0, ids)
        while todo:
            start, used = todo.pop()
            node = self._nodes[start.node]
            run = common_prefix(node.token_ids[start.offset :], ids[used:])
            if used + run > best_used:
                best, best_used = Point(start.node, start.offset + run), used + run
            todo += self._entered(start.node, start.offset, used, run, ids)
        return Placement(best, ids[best_used:])

    def _entered(
        self, parent: int | None, offset: int, used: int, run: int, ids: Ids
    ) -> list[tuple[Point, int]]:
        """Find the children that continue ``ids`` from a point on the matched stretch of their parent."""
        found: list[tuple[Point, int]] = []
        for index in self._children.get(parent, ()):
            child = self._nodes[index]
            skipped = (child.parent.offset if child.parent else 0) - offset
            at = used + skipped
            if 0 <= skipped <= run and at < len(ids) and child.token_ids[0] == ids[at]:
                found.append((Point(index, 0), at))
        return found
