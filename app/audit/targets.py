"""Recount training targets from the trees: each must be sampled, on its path, and used at most once."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.audit.findings import Findings
from app.audit.rebuild import path_to
from db.audit import AuditCall, AuditNode, AuditTrajectory
from gyre.contracts.lifecycle import CallStatus, NodeKind


@dataclass(frozen=True)
class TargetCount:
    """Faulty target tokens of one execution."""

    not_sampled: int = 0
    repeated: int = 0

    def __add__(self, other: "TargetCount") -> "TargetCount":
        return TargetCount(self.not_sampled + other.not_sampled, self.repeated + other.repeated)


def count_targets(
    trajectories: Iterable[AuditTrajectory],
    nodes: Mapping[str, AuditNode],
    calls: Mapping[str, AuditCall],
    findings: Findings,
) -> TargetCount:
    """Check every trajectory of one execution, over all batches, and count its faulty targets."""
    uses: dict[str, list[int]] = defaultdict(list)
    not_sampled = 0
    for trajectory in trajectories:
        lengths = _path_lengths(trajectory, nodes, findings)
        num_targets = 0
        for name in trajectory.target_node_ids:
            good, bad = _target_tokens(name, lengths, nodes, calls)
            sentence = f"{bad} target tokens of {trajectory.id} in {name} were not sampled on its path"
            findings.require("targets_sampled", bad == 0, sentence)
            not_sampled, num_targets = not_sampled + bad, num_targets + good + bad
            uses[name].append(good)
        findings.require(
            "targets_counted",
            num_targets == trajectory.num_targets,
            f"{trajectory.id} records {trajectory.num_targets} targets, but its nodes have {num_targets}",
        )
    # One use of a node is right, the largest one; all others repeat it.
    repeated = {name: sum(counts) - max(counts) for name, counts in uses.items()}
    for name, count in repeated.items():
        findings.require("targets_once", count == 0, f"{count} tokens of {name} are targets again")
    return TargetCount(not_sampled, sum(repeated.values()))


def _path_lengths(
    trajectory: AuditTrajectory, nodes: Mapping[str, AuditNode], findings: Findings
) -> dict[str, int]:
    """Return the number of each node's tokens on the trajectory's path; empty if the path is broken."""
    try:
        pieces = path_to(nodes, trajectory.leaf_node_id)
    except ValueError as error:
        findings.require("targets_sampled", False, f"{trajectory.id} has no path: {error}")
        return {}
    length = sum(piece.taken for piece in pieces)
    findings.require(
        "targets_counted",
        length == trajectory.num_tokens,
        f"{trajectory.id} records {trajectory.num_tokens} tokens, but its path has {length}",
    )
    return {piece.node.id: piece.taken for piece in pieces}


def _target_tokens(
    name: str, lengths: Mapping[str, int], nodes: Mapping[str, AuditNode], calls: Mapping[str, AuditCall]
) -> tuple[int, int]:
    """Return (tokens that may be targets, tokens that may not) of a target node.

    An unknown node counts as one token that may not.
    """
    node = nodes.get(name)
    if node is None:
        return 0, 1
    call = calls.get(node.call_id)
    witnessed = call is not None and call.status == CallStatus.COMMITTED and call.sampled_node_id == name
    if node.kind != NodeKind.SAMPLED or not witnessed:
        return 0, max(node.num_tokens, 1)
    on_path = lengths.get(name, 0)
    return on_path, node.num_tokens - on_path
