"""From trajectories to micro-steps under a token budget; an execution stays whole where it fits."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gyre.contracts.lifecycle import MicroStepKind
from gyre.trajectory.layout import Segments, lay_out


@dataclass(frozen=True)
class Item:
    """A trajectory to pack. ``segments`` are what is computed of it: the tokens before its last target."""

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
    """First-fit-decreasing over whole executions; all ``score`` steps come before all ``grad`` steps.

    An execution larger than the budget is cut at trajectory borders, depth first, so that trajectories
    with long common prefixes stay together; what pieces share is computed in each. The pieces of an
    execution in ``scored`` are scored first: the clip of the loss needs all of its targets. A single
    trajectory above the budget gets a micro-step of its own: the budget is a target, the trajectory a fact.
    The result does not depend on the order of ``items``.
    """
    executions: dict[str, list[Item]] = {}
    for item in sorted(items, key=lambda item: (item.execution_id, item.trajectory_id)):
        executions.setdefault(item.execution_id, []).append(item)
    cuts = [_cut(group, budget) for group in executions.values()]
    pieces = [piece for cut in cuts if len(cut) > 1 for piece in cut]
    first = [piece for piece in pieces if piece.items[0].execution_id in scored]
    whole = _first_fit([cut[0] for cut in cuts if len(cut) == 1], budget)
    return [
        *(_step(MicroStepKind.SCORE, piece) for piece in first),
        *(_step(MicroStepKind.GRAD, piece) for piece in [*pieces, *whole]),
    ]


class _Piece:
    """Items and how much of each node they need together."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self.items: list[Item] = []
        self.num_tokens = 0
        self._used: dict[str, int] = {}
        for item in items:
            self.add(item)

    def added_tokens(self, item: Item) -> int:
        """By how much the item would lengthen the row."""
        return sum(max(0, count - self._used.get(node, 0)) for node, count in item.segments)

    def add(self, item: Item) -> None:
        self.num_tokens += self.added_tokens(item)
        self._used |= {node: max(count, self._used.get(node, 0)) for node, count in item.segments}
        self.items.append(item)


def _cut(group: Sequence[Item], budget: int) -> list[_Piece]:
    """Next-fit over the depth-first order."""
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


def _first_fit(groups: Sequence[_Piece], budget: int) -> list[_Piece]:
    """Executions share no node, so a bin holds the sum of its groups."""
    bins: list[_Piece] = []
    for group in sorted(groups, key=lambda g: (-g.num_tokens, g.items[0].execution_id)):
        target = next((b for b in bins if b.num_tokens + group.num_tokens <= budget), None)
        if target is None:
            bins.append(target := _Piece())
        for item in group.items:
            target.add(item)
    return bins


def _step(kind: MicroStepKind, piece: _Piece) -> Packed:
    return Packed(kind, tuple(item.trajectory_id for item in piece.items), piece.num_tokens)
