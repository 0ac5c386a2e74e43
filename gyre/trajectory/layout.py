"""Paths of a forest in one packed row: each shared token once, and who sees whom as contiguous ranges.

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
    """What is asked of a node, wherever it comes from."""

    @property
    def id(self) -> str: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def parent_offset(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...


class Block(NamedTuple):
    """Every query of rows [start, stop) sees every key of rows [first, last)."""

    start: int
    stop: int
    first: int
    last: int


@dataclass(frozen=True)
class Layout:
    """A row of ``num_tokens`` tokens.

    ``rows`` has, for each path given, the row of each of its tokens. A token sees itself and what precedes it
    in its chain, [start, stop), and all keys of the blocks that hold it: together the path to it, once.
    ``order`` is the paths depth first, so that neighbours share the most.
    """

    num_tokens: int
    rows: list[NDArray[np.int64]]
    chains: list[tuple[int, int]]
    blocks: list[Block]
    order: list[int]


def segments_to(leaf: str, nodes: Mapping[str, TreeNode]) -> Segments:
    """The path from the root to the end of a node."""
    chain = [nodes[leaf]]
    while (parent := chain[-1].parent_id) is not None:
        chain.append(nodes[parent])
    chain.reverse()
    ends = [child.parent_offset for _, child in pairwise(chain)] + [chain[-1].num_tokens]
    return [(node.id, end) for node, end in zip(chain, ends, strict=True)]


def head(segments: Segments, num_tokens: int) -> Segments:
    """The first ``num_tokens`` tokens of a path."""
    taken: list[tuple[str, int]] = []
    for node, count in segments:
        if num_tokens <= 0:
            break
        taken.append((node, min(count, num_tokens)))
        num_tokens -= count
    return taken


def lay_out(paths: Sequence[Segments]) -> Layout:
    """Depth first, the longest path of each branching first: it continues the chain that it branches from,
    so that there is one chain a leaf and few chains lie on any path."""
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
    """In the order of placement."""
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
            group = branches.pop(depth, [])  # siblings of the chain: they see nothing of it
            for point in sorted(branches, reverse=True):
                begin = self.num_tokens
                self.place(branches[point], point, rows[:point])
                if begin < self.num_tokens:
                    self.blocks.append(Block(begin, self.num_tokens, start, start + point - depth))


def _length(path: Segments) -> int:
    return sum(count for _, count in path)


def _shared(a: Segments, b: Segments) -> int:
    """How many leading tokens two paths share."""
    shared = 0
    for (node, count), (other, other_count) in zip(a, b, strict=False):
        if node != other:
            break
        shared += min(count, other_count)
        if count != other_count:
            break
    return shared
