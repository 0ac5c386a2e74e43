"""Walk the trees of a run, one execution at a time, over every committed call and every target."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy.orm import Session

from app.audit.findings import Findings
from app.audit.rebuild import RebuiltCall, rebuild
from app.audit.targets import TargetCount, count_targets
from db import audit as rows_of
from db.audit import AuditCall, AuditNode, RunRows
from gyre.contracts.lifecycle import CallStatus

Progress = Callable[[str, int, int], None]
"""Called with (part, done, total) as the audit proceeds."""
R = TypeVar("R")


@dataclass
class TreeResult:
    """Totals of the walk over all trees."""

    num_calls: int = 0
    """Committed calls."""
    num_compared: int = 0
    """Committed calls that were rebuilt from the tree and compared with their hashes."""
    hash_mismatches: int = 0
    """Compared calls that differ from their record."""
    targets: TargetCount = field(default_factory=TargetCount)
    chosen: list[RebuiltCall] = field(default_factory=list)
    """The calls whose log-probabilities are to be recomputed."""

    @property
    def coverage(self) -> float:
        """Share of the committed calls that were compared; 1 if there are none."""
        return self.num_compared / self.num_calls if self.num_calls else 1.0


def walk_trees(
    session: Session, rows: RunRows, chosen: set[str], findings: Findings, progress: Progress
) -> TreeResult:
    """Rebuild every committed call of the run and recount all targets; keep the ``chosen`` calls."""
    calls = _by(rows.calls, lambda call: call.execution_id)
    trajectories = _by(rows.trajectories, lambda trajectory: trajectory.execution_id)
    result = TreeResult()
    for done, execution in enumerate(rows.executions):
        progress("trees", done, len(rows.executions))
        # Tokens and log-probabilities of a whole run might not fit into memory.
        nodes = {node.id: node for node in rows_of.nodes_of(session, execution.id)}
        own = calls[execution.id]
        for call in own:
            if call.status == CallStatus.COMMITTED:
                _compare(call, nodes, call.id in chosen, result, findings)
        by_id = {call.id: call for call in own}
        result.targets += count_targets(trajectories[execution.id], nodes, by_id, findings)
    progress("trees", len(rows.executions), len(rows.executions))
    return result


def _compare(
    call: AuditCall, nodes: dict[str, AuditNode], keep: bool, result: TreeResult, findings: Findings
) -> None:
    result.num_calls += 1
    try:
        rebuilt, differences = rebuild(call, nodes)
    except ValueError as error:
        findings.require("calls_rebuilt", False, f"{call.id} cannot be rebuilt: {error}")
        return
    result.num_compared += 1
    result.hash_mismatches += bool(differences)
    for difference in differences:
        findings.require("hashes_match", False, f"{call.id}: {difference}")
    if keep and not differences:
        result.chosen.append(rebuilt)


def _by(rows: Iterable[R], key: Callable[[R], str]) -> dict[str, list[R]]:
    grouped: dict[str, list[R]] = defaultdict(list)
    for row in rows:
        grouped[key(row)].append(row)
    return grouped
