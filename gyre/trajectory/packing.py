"""Packs trajectories into micro-steps under a token budget; an execution stays whole where it fits."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gyre.contracts.lifecycle import MicroStepKind
from gyre.trajectory.layout import Segments, lay_out


@dataclass(frozen=True)
class Item:
    """A trajectory to pack. ``segments`` hold the tokens to compute: those before its last target."""

    trajectory_id: str
    execution_id: str
    segments: Segments


@dataclass(frozen=True)
class Packed:
    """One micro-step: the trajectories of one packed row, whose shared tokens are computed once."""

    kind: MicroStepKind
    trajectory_ids: tuple[str, ...]
    num_tokens: int
    """Unique tokens: the length of the row."""


def pack(items: Iterable[Item], *, budget: int, scored: Collection[str]) -> list[Packed]:
    """Pack executions first-fit-decreasing, independently of the order of ``items``.

    All ``score`` steps come before all ``grad`` steps, and the longest of a kind first, so that replicas
    which work on neighbors wait little for each other.

    An execution larger than the budget is cut between trajectories, depth first, so that trajectories with
    long common prefixes stay together; what pieces share is computed in each. The pieces of an execution in
    ``scored`` are scored first: the clip of the loss needs all of its targets. A trajectory above the
    budget cannot be cut and gets a micro-step of its own.
    """
    executions: dict[str, list[Item]] = {}
    for item in sorted(items, key=lambda item: (item.execution_id, item.trajectory_id)):
        executions.setdefault(item.execution_id, []).append(item)
    cuts = [_cut(group, budget) for group in executions.values()]
    first = [cut for cut in cuts if len(cut) > 1 and cut[0].items[0].execution_id in scored]
    return [
        *_steps(MicroStepKind.SCORE, first, budget),
        *_steps(MicroStepKind.GRAD, cuts, budget),
    ]


class _Piece:
    """Items of one row, and how much of each node they need together."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self.items: list[Item] = []
        self.num_tokens = 0
        self._used: dict[str, int] = {}
        for item in items:
            self.add(item)

    def added_tokens(self, item: Item) -> int:
        """Return by how much the item would lengthen the row."""
        return sum(max(0, count - self._used.get(node, 0)) for node, count in item.segments)

    def add(self, item: Item) -> None:
        self.num_tokens += self.added_tokens(item)
        self._used |= {node: max(count, self._used.get(node, 0)) for node, count in item.segments}
        self.items.append(item)


def _cut(group: Sequence[Item], budget: int) -> list[_Piece]:
    """Cut an execution into pieces: next-fit over its trajectories in depth-first order."""
    whole = _Piece(group)
    if whole.num_tokens <= budget:
        return [whole]
    pieces = [_Piece()]
    for index in lay_out([item.segments for item in group]).order:
        item = group[index]
        if pieces[-1].items and pieces[-1].num_tokens + pieces[-1].added_tokens(item) > budget:
            pieces.append(_Piece())
        pieces[-1].add(item)
    return pieces


def _steps(kind: MicroStepKind, cuts: Iterable[Sequence[_Piece]], budget: int) -> list[Packed]:
    """Combine pieces into steps first-fit-decreasing; return the longest step first."""
    pieces = [piece for cut in cuts for piece in cut]
    bins: list[_Piece] = []
    for piece in sorted(pieces, key=lambda p: (-p.num_tokens, p.items[0].trajectory_id)):
        # The sum is an upper bound: pieces of the same execution may share nodes.
        target = next((b for b in bins if b.num_tokens + piece.num_tokens <= budget), None)
        if target is None:
            bins.append(target := _Piece())
        for item in piece.items:
            target.add(item)
    steps = [Packed(kind, tuple(item.trajectory_id for item in b.items), b.num_tokens) for b in bins]
    return sorted(steps, key=lambda step: -step.num_tokens)
