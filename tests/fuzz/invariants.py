"""Invariants of the rows of a run, whatever was sent to its gateway. Shares no code with the gateway."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.audit.rebuild import rebuild
from db import audit

COUNTS = """
SELECT c.id, c.status, c.failure, c.num_input_tokens, c.num_reused_tokens, c.num_output_tokens,
       c.finish_reason, c.delivered_at IS NOT NULL, c.lease_owner IS NOT NULL,
       (c.sampling ->> 'max_new_tokens')::bigint
FROM model_call c WHERE c.run_id = :run"""


def violations(session: Session, run: str) -> list[str]:
    """Return one sentence per broken invariant of a row; all calls must have ended."""
    return [*_calls_broken(session, run), *_trees_broken(session, run)]


def _calls_broken(session: Session, run: str) -> Iterator[str]:
    for row in session.execute(text(COUNTS), {"run": run}):
        name, status, failure, num_input, reused, output, finish, delivered, leased, bound = row
        committed = status == "committed"
        if status not in ("committed", "failed") or leased:
            yield f"{name} has not ended: {status}, leased: {leased}"
        if (failure is None) != committed or (delivered and not committed):
            yield f"{name} is {status}, failure {failure!r}, delivered: {delivered}"
        if committed and not (0 < output <= bound and finish and 0 <= reused <= num_input):
            yield f"{name}: {num_input} in, {reused} reused, {output} of {bound} out, {finish!r}"


def _trees_broken(session: Session, run: str) -> Iterator[str]:
    by_execution: dict[str, list[audit.AuditCall]] = defaultdict(list)
    for row in session.execute(text(audit.CALLS), {"run": run}):
        call = audit.AuditCall(*row)
        by_execution[call.execution_id].append(call)
    for execution, calls in by_execution.items():
        nodes = audit.nodes_of(session, execution)
        by_id = {node.id: node for node in nodes}
        committed = [call for call in calls if call.status == "committed"]
        for call in committed:
            try:
                _, differences = rebuild(call, by_id)
            except ValueError as error:
                differences = [str(error)]
            yield from (f"{call.id}: {difference}" for difference in differences)
        yield from _ownership_broken(committed, nodes)
        yield from _sharing_broken(nodes, by_id)


def _ownership_broken(
    committed: Sequence[audit.AuditCall], nodes: Sequence[audit.AuditNode]
) -> Iterator[str]:
    """Check that each sampled node is the answer of one committed call, and each node was made by one."""
    answers = Counter(call.sampled_node_id for call in committed)
    makers = {call.id for call in committed}
    for node in nodes:
        if node.call_id not in makers:
            yield f"{node.id} was made by {node.call_id}, which is not committed"
        if answers[node.id] != (node.kind == "sampled"):
            yield f"{node.id} ({node.kind}) is the answer of {answers[node.id]} calls"


def _sharing_broken(nodes: Sequence[audit.AuditNode], by_id: dict[str, audit.AuditNode]) -> Iterator[str]:
    """Check that a context node begins with a token that its place did not have: none is stored twice."""
    begun: dict[tuple[str | None, int], set[bytes]] = defaultdict(set)
    for node in nodes:  # in order of arrival
        place, first = (node.parent_id, node.parent_offset), node.token_ids[:4]
        parent = by_id[node.parent_id] if node.parent_id else None
        inside = parent.token_ids[4 * node.parent_offset :][:4] if parent else b""
        if node.kind == "context" and (first in begun[place] or first == inside):
            yield f"{node.id} repeats tokens that the tree had at {place}"
        begun[place].add(first)
