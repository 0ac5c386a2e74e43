"""Seeded trees of turns, shaped as compaction, sub-agents and retries shape them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_workers.trainer.data import TargetPath
from gyre.trajectory.extraction import ExtractionNode, extract
from gyre.trajectory.layout import head, segments_to

TOOL_TOKENS, ANSWER_TOKENS = (30, 150), (15, 60)
"""Ranges of tokens per tool output and per answer, uniform: 25 to 33 % of new tokens are sampled."""


@dataclass(frozen=True)
class Growth:
    """The way an execution branches. Ranges are uniform fractions."""

    num_paths: int
    shared: tuple[float, float]
    """Fraction of an earlier path's tokens after which a new path leaves it."""
    length: tuple[float, float] = (0.8, 1.0)
    """Length of a new path as a fraction of the longest path."""


def grow(rng: np.random.Generator, path_tokens: int, growth: Growth) -> list[ExtractionNode]:
    """Grow a tree with paths of up to ``path_tokens``; a branch may leave inside a node, like a retry."""
    nodes, leaves = list[ExtractionNode](), list[ExtractionNode]()
    for number in range(growth.num_paths):
        end = path_tokens if number == 0 else int(path_tokens * rng.uniform(*growth.length))
        base = leaves[rng.integers(number)] if number else None
        parent, offset = (None, 0)
        if base is not None:
            depth = int(rng.uniform(*growth.shared) * min(end, base.position + base.num_tokens))
            parent, offset = _point(nodes, base, max(1, depth))
        leaves.append(_extend(rng, nodes, parent, offset, end))
    return nodes


def _point(nodes: Sequence[ExtractionNode], leaf: ExtractionNode, depth: int) -> tuple[ExtractionNode, int]:
    """Find the node and offset after ``depth`` tokens of the path to a leaf."""
    by_id, node = {node.id: node for node in nodes}, leaf
    while node.position >= depth:
        node = by_id[node.parent_id or ""]
    return node, depth - node.position


def _extend(
    rng: np.random.Generator,
    nodes: list[ExtractionNode],
    parent: ExtractionNode | None,
    offset: int,
    end: int,
) -> ExtractionNode:
    """Add turns of tool output and answer until the path has about ``end`` tokens and ends with an answer."""
    position = parent.position + offset if parent else 0
    sampled = False
    while position < end or not sampled:
        sampled = bool(nodes) and not sampled
        count = int(rng.integers(*(ANSWER_TOKENS if sampled else TOOL_TOKENS)))
        parent_id = parent.id if parent else None
        node = ExtractionNode(str(len(nodes)), parent_id, offset, position, count, sampled, "main")
        nodes.append(node)
        parent, offset, position = node, count, position + count
    assert parent is not None
    return parent


def sample(
    rng: np.random.Generator, nodes: Sequence[ExtractionNode], execution: str, vocab_size: int
) -> list[TargetPath]:
    """Extract all trajectories of a tree, with random tokens."""
    by_id = {node.id: node for node in nodes}
    ids = {node.id: rng.integers(0, vocab_size, node.num_tokens) for node in nodes}
    found = extract(nodes, max_paths=len(nodes), seed=execution)
    paths = list[TargetPath]()
    for path in found:
        segments = segments_to(path.leaf_id, by_id)
        spans = [(by_id[name].position, by_id[name].num_tokens) for name in path.target_ids]
        targets = np.concatenate([np.arange(start, start + count) for start, count in spans])
        end = int(targets[-1]) + 1
        named = [(f"{execution}/{name}", count) for name, count in segments]
        paths.append(
            TargetPath(
                execution_id=execution,
                advantage=1.0,
                num_execution_targets=sum(each.num_targets for each in found),
                tokens=np.concatenate([ids[name][:count] for name, count in segments])[:end],
                targets=targets,
                behaviour=np.full(len(targets), -np.log(vocab_size), np.float32),
                segments=head(named, end - 1),
            )
        )
    return paths
