"""From a tree to at most J_max trajectories: every sampled token a target at most once.

Take the highest role class that still has unmasked trainable nodes, draw a leaf in it with
probability proportional to its unmasked tokens, emit those tokens as the path's targets, mask the
whole path, repeat (as in QwenGyre, arXiv 2609.33848).
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ROLES = ("main", "main_summary", "subagent", "subagent_summary")
"""Role classes that are trained, highest first. ``side`` calls are recorded and never trained."""


@dataclass(frozen=True)
class Node:
    """What extraction needs to know of a tree node."""

    id: str
    parent_id: str | None
    parent_offset: int
    """How many of the parent's tokens are on the path to this node."""
    position: int
    num_tokens: int
    trainable: bool
    """Sampled by the policy."""
    role: str


@dataclass(frozen=True)
class Path:
    """One trajectory: the root-to-leaf path and which of its nodes are targets."""

    leaf_id: str
    role: str
    num_tokens: int
    target_ids: tuple[str, ...]
    num_targets: int


def extract(nodes: Sequence[Node], *, max_paths: int, seed: str) -> list[Path]:
    """At most ``max_paths`` paths; the same for any order of ``nodes``.

    A node that a path leaves before its end (a branch inside it) can only be a target of a path
    that holds it whole.
    """
    by_id = {node.id: node for node in nodes}
    leaves = sorted(_leaves(nodes), key=lambda node: node.id)
    on_path = {leaf.id: _whole_ancestors(leaf, by_id) for leaf in leaves}
    draw, masked, paths = random.Random(seed), set[str](), list[Path]()
    while len(paths) < max_paths and (candidates := _candidates(leaves, on_path, masked)):
        role = min((r for r, _, _ in candidates), key=ROLES.index)
        pool = [(leaf, fresh) for r, leaf, fresh in candidates if r == role]
        weights = [sum(node.num_tokens for node in fresh) for _, fresh in pool]
        leaf, fresh = draw.choices(pool, weights=weights)[0]
        masked |= {node.id for node in on_path[leaf.id]}
        paths.append(_path(leaf, role, fresh))
    return paths


def _candidates(
    leaves: Sequence[Node], on_path: Mapping[str, Sequence[Node]], masked: set[str]
) -> list[tuple[str, Node, list[Node]]]:
    """(role class, leaf, its unmasked trainable nodes) of each leaf that still has some."""
    found: list[tuple[str, Node, list[Node]]] = []
    for leaf in leaves:
        fresh = [n for n in on_path[leaf.id] if n.trainable and n.role in ROLES and n.id not in masked]
        if fresh:
            found.append((min((n.role for n in fresh), key=ROLES.index), leaf, fresh))
    return found


def _path(leaf: Node, role: str, fresh: Sequence[Node]) -> Path:
    return Path(
        leaf_id=leaf.id,
        role=role,
        num_tokens=leaf.position + leaf.num_tokens,
        target_ids=tuple(node.id for node in fresh),
        num_targets=sum(node.num_tokens for node in fresh),
    )


def _leaves(nodes: Sequence[Node]) -> list[Node]:
    """Nodes that no child holds whole: a branch inside a node leaves its own end a leaf."""
    by_id = {node.id: node for node in nodes}
    covered = {
        node.parent_id
        for node in nodes
        if node.parent_id is not None and node.parent_offset == by_id[node.parent_id].num_tokens
    }
    return [node for node in nodes if node.id not in covered]


def _whole_ancestors(leaf: Node, by_id: Mapping[str, Node]) -> list[Node]:
    """The nodes whose every token is on the path to the leaf, from the root down."""
    path, node = [leaf], leaf
    while node.parent_id is not None:
        parent = by_id[node.parent_id]
        if node.parent_offset == parent.num_tokens:
            path.append(parent)
        node = parent
    return path[::-1]
