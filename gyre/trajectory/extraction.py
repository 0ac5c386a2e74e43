"""Extracts at most J_max trajectories from a tree; every sampled token is a target at most once.

Take the highest role class that still has unmasked trainable nodes, draw a leaf in it with probability
proportional to its unmasked tokens, emit those tokens as the path's targets, mask the whole path, repeat
(as in QwenGyre, arXiv 2609.33848).
"""

import random
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from gyre.contracts.roles import TRAINED_ROLES


@dataclass(frozen=True)
class ExtractionNode:
    """A tree node without its tokens."""

    id: str
    parent_id: str | None
    parent_offset: int
    """How many of the parent's tokens are on the path to this node."""
    position: int
    num_tokens: int
    trainable: bool
    """Whether the policy sampled it."""
    role: str


@dataclass(frozen=True)
class Path:
    """One trajectory: the root-to-leaf path and which of its nodes are targets."""

    leaf_id: str
    role: str
    num_tokens: int
    target_ids: tuple[str, ...]
    num_targets: int


def extract(nodes: Sequence[ExtractionNode], *, max_paths: int, seed: str) -> list[Path]:
    """Choose at most ``max_paths`` paths, the same for any order of ``nodes``, in O(nodes * paths).

    A node that a path leaves before its end (a branch inside it) can only be a target of a path
    that holds it whole. A leaf is of the highest role class that has unmasked nodes on its path.
    """
    by_id = {node.id: node for node in nodes}
    downwards = sorted(nodes, key=lambda node: (node.position, node.id))
    leaves = sorted(_leaves(nodes, by_id), key=lambda node: node.id)
    unmasked = {node.id for node in nodes if node.trainable and node.role in TRAINED_ROLES}
    draw, paths = random.Random(seed), list[Path]()
    while unmasked and len(paths) < max_paths:
        fresh = _fresh_to(downwards, by_id, unmasked)
        first = min(fresh[leaf.id].role for leaf in leaves)
        pool = [leaf for leaf in leaves if fresh[leaf.id].role == first]
        leaf = draw.choices(pool, weights=[fresh[leaf.id].num_tokens for leaf in pool])[0]
        targets = [node for node in _whole_ancestors(leaf, by_id) if node.id in unmasked]
        unmasked -= {node.id for node in targets}
        path = Path(
            leaf_id=leaf.id,
            role=TRAINED_ROLES[first],
            num_tokens=leaf.position + leaf.num_tokens,
            target_ids=tuple(node.id for node in targets),
            num_targets=sum(node.num_tokens for node in targets),
        )
        paths.append(path)
    return paths


class _Fresh(NamedTuple):
    """The unmasked nodes that a path holds whole."""

    num_tokens: int
    role: int
    """The highest class among them, as an index of TRAINED_ROLES; its length if there are none."""


def _fresh_to(
    downwards: Iterable[ExtractionNode], by_id: Mapping[str, ExtractionNode], unmasked: Set[str]
) -> dict[str, _Fresh]:
    """Sum up what is unmasked on the path to each node; ``downwards`` has parents before children."""
    above: dict[str, _Fresh] = {}
    through: dict[str, _Fresh] = {}
    for node in downwards:
        here = _Fresh(0, len(TRAINED_ROLES))
        if node.parent_id is not None:
            whole = node.parent_offset == by_id[node.parent_id].num_tokens
            here = (through if whole else above)[node.parent_id]
        above[node.id] = here
        if node.id in unmasked:
            here = _Fresh(here.num_tokens + node.num_tokens, min(here.role, TRAINED_ROLES.index(node.role)))
        through[node.id] = here
    return through


def _leaves(nodes: Sequence[ExtractionNode], by_id: Mapping[str, ExtractionNode]) -> Iterable[ExtractionNode]:
    """Return the nodes that no child holds whole: a branch inside a node leaves its own end a leaf."""
    covered = {
        node.parent_id
        for node in nodes
        if node.parent_id is not None and node.parent_offset == by_id[node.parent_id].num_tokens
    }
    return [node for node in nodes if node.id not in covered]


def _whole_ancestors(leaf: ExtractionNode, by_id: Mapping[str, ExtractionNode]) -> list[ExtractionNode]:
    """Return the nodes whose every token is on the path to the leaf, from the root down."""
    path, node = [leaf], leaf
    while node.parent_id is not None:
        parent = by_id[node.parent_id]
        if node.parent_offset == parent.num_tokens:
            path.append(parent)
        node = parent
    return path[::-1]
