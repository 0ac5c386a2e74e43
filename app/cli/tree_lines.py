"""Lines of a drawn token tree: chains of nodes are folded, and branches indented under the chain they leave.

A node's heaviest continuation stays on its level, so the depth of a drawing counts how often a conversation
branched and not how many turns it took.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Record = Mapping[str, Any]
"""A row of `db.rollout_queries.tree`."""
Beginning = Literal["root", "branch", "next"]


@dataclass(frozen=True)
class TreeLine:
    """A chain of nodes, each of which continues the previous one at its end."""

    nodes: tuple[Record, ...]
    depth: int
    """Number of branches between the line and its root."""
    beginning: Beginning
    left: Record | None
    """The node that the line branches off before that node's end; None if it continues an end."""

    @property
    def sampled(self) -> list[Record]:
        return [node for node in self.nodes if node["kind"] == "sampled"]

    @property
    def role(self) -> str:
        return self.nodes[0]["role"]

    @property
    def target_of(self) -> int | None:
        """The selected path that trains the line's sampled tokens."""
        return next((node["target_of"] for node in self.sampled), None)

    def tokens(self, kind: str | None = None) -> int:
        return sum(node["num_tokens"] for node in self.nodes if kind in (None, node["kind"]))


def lines(nodes: Sequence[Record], *, folded: bool) -> Iterator[TreeLine]:
    """Yield the nodes of one attempt as lines, top to bottom; one node per line unless ``folded``.

    Parents must precede their children in ``nodes``.
    """
    by_id = {node["id"]: node for node in nodes}
    children: dict[str | None, list[Record]] = defaultdict(list)
    for node in nodes:
        children[node["parent_id"]].append(node)
    weights = _weights(nodes)
    todo: list[tuple[Record, int, Beginning]] = [(root, 0, "root") for root in reversed(children[None])]
    while todo:
        first, depth, beginning = todo.pop()
        chain = _chain(first, children) if folded else [first]
        parent = by_id.get(first["parent_id"])
        left = parent if parent is not None and not _continues(first, parent) else None
        yield TreeLine(tuple(chain), depth, beginning, left)
        after = children[chain[-1]["id"]]
        at_end = [child for child in after if _continues(child, chain[-1])]
        heaviest = max(at_end, key=lambda child: weights[child["id"]], default=None)
        # The stack is popped from its end: branches come out first, in their order, then the continuation.
        if heaviest is not None:
            todo.append((heaviest, depth, "next"))
        todo += [(child, depth + 1, "branch") for child in reversed(after) if child is not heaviest]


def sampled_on_path(leaf: str, by_id: Mapping[str, Record]) -> int:
    """Count the sampled tokens between the root and the end of ``leaf``."""
    total, name, taken = 0, leaf, by_id[leaf]["num_tokens"]
    while name is not None:
        node = by_id[name]
        total += taken if node["kind"] == "sampled" else 0
        name, taken = node["parent_id"], node["parent_offset"]
    return total


def _weights(nodes: Sequence[Record]) -> dict[str | None, int]:
    """Return the number of tokens at and below each node."""
    weights: dict[str | None, int] = defaultdict(int)
    for node in reversed(nodes):
        weights[node["id"]] += node["num_tokens"]
        weights[node["parent_id"]] += weights[node["id"]]
    return weights


def _chain(first: Record, children: Mapping[str | None, list[Record]]) -> list[Record]:
    """Return ``first`` and its successors up to a branch, the end of a path or a change of role."""
    chain = [first]
    while len(after := children[chain[-1]["id"]]) == 1 and not chain[-1]["leaf_of"]:
        if not _continues(after[0], chain[-1]) or after[0]["role"] != first["role"]:
            break
        chain.append(after[0])
    return chain


def _continues(node: Record, parent: Record) -> bool:
    return node["parent_offset"] == parent["num_tokens"]
