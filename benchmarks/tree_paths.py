"""Executions as trees of turns: what compaction, sub-agents and retries leave behind, seeded."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_workers.trainer.data import TargetPath
from gyre.trajectory.extraction import ExtractionNode, extract
from gyre.trajectory.layout import head, segments_to

TOOL_TOKENS, ANSWER_TOKENS = (30, 150), (15, 60)
"""Tokens of a tool's output and of an answer, uniform: a quarter to a third of what is new is sampled."""


@dataclass(frozen=True)
class Growth:
    """How an execution branches: ``num_paths`` paths, each but the first leaving an earlier one after a part
    of its tokens between ``shared`` and ending at a part of the longest between ``length``."""

    num_paths: int
    shared: tuple[float, float]
    length: tuple[float, float] = (0.8, 1.0)


def grow(rng: np.random.Generator, path_tokens: int, growth: Growth) -> list[ExtractionNode]:
    """A tree whose longest path has ``path_tokens``; a branch may leave inside a node, as a retry does."""
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
    """The place after ``depth`` tokens of the path to a leaf."""
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
    """Turns, tool output then answer, up to a path of about ``end`` tokens; the last is an answer."""
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
    """All trajectories of the tree, with random tokens."""
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
