"""Replay role changes: whenever a cell left rollout, the others must have had room for the unfinished."""

from bisect import bisect_right

from app.audit.findings import Findings
from db.audit import RunRows
from gyre.contracts.lifecycle import CellRole


def count_waterlevel(rows: RunRows, findings: Findings) -> int:
    """Count the admissions to training at which unfinished executions exceeded the remaining capacity.

    Executions of any purpose are unfinished from their dispatch until they are terminal. Only cells in
    ROLLOUT provide capacity.
    """
    capacity = {cell.id: cell.capacity for cell in rows.cells}
    # Booting into ROLLOUT is no command, so no transition row says it.
    roles: dict[str, str] = dict.fromkeys(capacity, CellRole.ROLLOUT)
    dispatch_of = {group.id: group.dispatched_at for group in rows.groups}
    dispatched = sorted(dispatch_of[execution.group_id] for execution in rows.executions)
    terminated = sorted(e.terminal_at for e in rows.executions if e.terminal_at is not None)
    violations = 0
    for change in rows.transitions:
        roles[change.cell_id] = change.to_role
        if change.from_role != CellRole.ROLLOUT or change.to_role == CellRole.LOST:
            continue  # losing a cell is not an admission to training
        remaining = sum(capacity[cell] for cell, role in roles.items() if role == CellRole.ROLLOUT)
        unfinished = bisect_right(dispatched, change.at) - bisect_right(terminated, change.at)
        violations += not findings.require(
            "waterlevel_kept",
            unfinished <= remaining,
            f"{unfinished} executions were unfinished when {change.cell_id} left rollout at "
            f"{change.at.isoformat()}, but the other cells serve {remaining}",
        )
    return violations
