"""From trajectories to micro-steps under a token budget; an execution stays whole where it fits."""

from collections.abc import Sequence
from dataclasses import dataclass

from gyre.contracts.lifecycle import MicroStepKind


@dataclass(frozen=True)
class Item:
    """A trajectory to pack."""

    trajectory_id: str
    execution_id: str
    num_tokens: int


@dataclass(frozen=True)
class Packed:
    """One micro-step: the trajectories of one packed row."""

    kind: MicroStepKind
    trajectory_ids: tuple[str, ...]
    num_tokens: int


def pack(items: Sequence[Item], *, budget: int) -> list[Packed]:
    """First-fit-decreasing over whole executions; all ``score`` steps come before all ``grad`` steps.

    An execution larger than the budget is cut at trajectory borders, and its pieces are scored
    first, because the clip of the loss needs all of its targets. A single trajectory above the
    budget gets a micro-step of its own: the budget is a target, the trajectory is a fact.
    """
    executions: dict[str, list[Item]] = {}
    for item in items:
        executions.setdefault(item.execution_id, []).append(item)
    cuts = [_cut(group, budget) for group in executions.values()]
    pieces = [piece for cut in cuts if len(cut) > 1 for piece in cut]
    whole = _first_fit([cut[0] for cut in cuts if len(cut) == 1], budget)
    return [
        *(_step(MicroStepKind.SCORE, piece) for piece in pieces),
        *(_step(MicroStepKind.GRAD, piece) for piece in [*pieces, *whole]),
    ]


def _cut(group: Sequence[Item], budget: int) -> list[list[Item]]:
    pieces: list[list[Item]] = [[]]
    for item in group:
        if pieces[-1] and _size(pieces[-1]) + item.num_tokens > budget:
            pieces.append([])
        pieces[-1].append(item)
    return pieces


def _first_fit(groups: Sequence[list[Item]], budget: int) -> list[list[Item]]:
    bins: list[list[Item]] = []
    for group in sorted(groups, key=lambda g: (-_size(g), g[0].execution_id)):
        target = next((b for b in bins if _size(b) + _size(group) <= budget), None)
        if target is None:
            bins.append(list(group))
        else:
            target.extend(group)
    return bins


def _size(items: Sequence[Item]) -> int:
    return sum(item.num_tokens for item in items)


def _step(kind: MicroStepKind, items: Sequence[Item]) -> Packed:
    return Packed(kind, tuple(item.trajectory_id for item in items), _size(items))
