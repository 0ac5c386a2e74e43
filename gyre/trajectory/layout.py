"""Layout of a packed row: each token that paths share is computed once, and attention is contiguous ranges.

A path is cut into *segments*, (node, how many of its tokens), root first. Two paths share exactly the tokens
of the nodes that both hold from the root on; sampled siblings with equal tokens are different nodes.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Segments = Sequence[tuple[str, int]]


class TreeNode(Protocol):
    """A node's place in its tree: rows of the database and extraction's nodes both have it."""

    @property
    def id(self) -> str: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def parent_offset(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...


class Block(NamedTuple):
    """Every query in rows [start, stop) attends to every key in rows [first, last)."""

    start: int
    stop: int
    first: int
    last: int


@dataclass(frozen=True)
class Layout:
    """A packed row of ``num_tokens`` tokens.

    ``rows`` has, per path, the row of each of its tokens. A token attends to itself and to what precedes it
    in its chain, [start, stop), and to all keys of the blocks that hold it: together exactly the path to
    it. ``order`` lists the paths depth first, so that neighbors share the most.
    """

    num_tokens: int
    rows: list[NDArray[np.int64]]
    chains: list[tuple[int, int]]
    blocks: list[Block]
    order: list[int]


def segments_to(leaf: str, nodes: Mapping[str, TreeNode]) -> Segments:
    """Return the path from the root to the end of a node."""
    chain = [nodes[leaf]]
    while (parent := chain[-1].parent_id) is not None:
        chain.append(nodes[parent])
    chain.reverse()
    ends = [child.parent_offset for _, child in pairwise(chain)] + [chain[-1].num_tokens]
    return [(node.id, end) for node, end in zip(chain, ends, strict=True)]


def head(segments: Segments, num_tokens: int) -> Segments:
    """Return the first ``num_tokens`` tokens of a path."""
    taken: list[tuple[str, int]] = []
    for node, count in segments:
        if num_tokens <= 0:
            break
        taken.append((node, min(count, num_tokens)))
        num_tokens -= count
    return taken


def lay_out(paths: Sequence[Segments]) -> Layout:
    """Lay out paths depth first, one chain per leaf.

    The longest path of each branching comes first and continues the chain that it branches from, so that few
    chains lie on any path.
    """
    roots: defaultdict[str, list[int]] = defaultdict(list)
    for index, path in enumerate(paths):
        roots[path[0][0] if path else ""].append(index)
    builder = _Builder(paths)
    for group in roots.values():
        builder.place(group, 0, np.zeros(0, np.int64))
    rows = [builder.rows[index] for index in range(len(paths))]
    return Layout(builder.num_tokens, rows, builder.chains, builder.blocks, list(builder.rows))


@dataclass
class _Builder:
    paths: Sequence[Segments]
    num_tokens: int = 0
    rows: dict[int, NDArray[np.int64]] = field(default_factory=dict[int, NDArray[np.int64]])
    """Keys are in the order of placement."""
    chains: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    blocks: list[Block] = field(default_factory=list[Block])

    def place(self, group: list[int], depth: int, above: NDArray[np.int64]) -> None:
        """Append the subtrees of paths that share their first ``depth`` tokens, in rows ``above``."""
        while group:
            lead = max(group, key=lambda index: _length(self.paths[index]))
            start, self.num_tokens = self.num_tokens, self.num_tokens + _length(self.paths[lead]) - depth
            rows = self.rows[lead] = np.concatenate([above, np.arange(start, self.num_tokens)])
            if start < self.num_tokens:
                self.chains.append((start, self.num_tokens))
            branches: defaultdict[int, list[int]] = defaultdict(list)
            for other in group:
                if other != lead:
                    branches[_shared(self.paths[lead], self.paths[other])].append(other)
            group = branches.pop(depth, [])  # siblings of this chain, which attend to nothing of it
            for point in sorted(branches, reverse=True):
                begin = self.num_tokens
                self.place(branches[point], point, rows[:point])
                if begin < self.num_tokens:
                    self.blocks.append(Block(begin, self.num_tokens, start, start + point - depth))


def _length(path: Segments) -> int:
    return sum(count for _, count in path)


def _shared(a: Segments, b: Segments) -> int:
    """Return the number of leading tokens that two paths share."""
    shared = 0
    for (node, count), (other, other_count) in zip(a, b, strict=False):
        if node != other:
            break
        shared += min(count, other_count)
        if count != other_count:
            break
    return shared
