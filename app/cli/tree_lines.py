"""A token tree as lines of text: chains of nodes folded, branches indented under the chain they leave.

A node's heaviest continuation stays on its level, so that the depth of a drawing is the number of times a
conversation branched and not the number of its turns.
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
    """A chain of nodes, each of which continues the one before at its end."""

    nodes: tuple[Record, ...]
    depth: int
    """Branches between it and its root."""
    beginning: Beginning
    left: Record | None
    """The node that its first one leaves before that one's end."""

    @property
    def sampled(self) -> list[Record]:
        return [node for node in self.nodes if node["kind"] == "sampled"]

    @property
    def role(self) -> str:
        return self.nodes[0]["role"]

    @property
    def target_of(self) -> int | None:
        """The selected path that trains its sampled tokens."""
        return next((node["target_of"] for node in self.sampled), None)

    def tokens(self, kind: str | None = None) -> int:
        return sum(node["num_tokens"] for node in self.nodes if kind in (None, node["kind"]))


def lines(nodes: Sequence[Record], *, folded: bool) -> Iterator[TreeLine]:
    """The nodes of one attempt, given parents first, as lines from top to bottom.

    Without ``folded`` each line is one node.
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
        going_on, branches = _parted(chain[-1], children[chain[-1]["id"]], weights)
        todo += [(node, depth, "next") for node in going_on]
        todo += [(node, depth + 1, "branch") for node in reversed(branches)]


def sampled_on_path(leaf: str, by_id: Mapping[str, Record]) -> int:
    """How many tokens from the root to the end of ``leaf`` were sampled."""
    total, name, taken = 0, leaf, by_id[leaf]["num_tokens"]
    while name is not None:
        node = by_id[name]
        total += taken if node["kind"] == "sampled" else 0
        name, taken = node["parent_id"], node["parent_offset"]
    return total


def _weights(nodes: Sequence[Record]) -> dict[str | None, int]:
    """Tokens at and below each node."""
    weights: dict[str | None, int] = defaultdict(int)
    for node in reversed(nodes):
        weights[node["id"]] += node["num_tokens"]
        weights[node["parent_id"]] += weights[node["id"]]
    return weights


def _chain(first: Record, children: Mapping[str | None, list[Record]]) -> list[Record]:
    """``first`` and what follows it as long as nothing branches off and nothing else changes."""
    chain = [first]
    while len(after := children[chain[-1]["id"]]) == 1 and not chain[-1]["leaf_of"]:
        if not _continues(after[0], chain[-1]) or after[0]["role"] != first["role"]:
            break
        chain.append(after[0])
    return chain


def _parted(
    node: Record, after: Sequence[Record], weights: Mapping[str | None, int]
) -> tuple[list[Record], list[Record]]:
    """(the heaviest child that continues the node at its end, if any; the other children)."""
    at_end = [child for child in after if _continues(child, node)]
    if not at_end:
        return [], list(after)
    heaviest = max(at_end, key=lambda child: weights[child["id"]])
    return [heaviest], [child for child in after if child is not heaviest]


def _continues(node: Record, parent: Record) -> bool:
    return node["parent_offset"] == parent["num_tokens"]
