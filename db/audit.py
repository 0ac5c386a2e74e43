"""Rows for the audit, read by plain SQL that shares nothing with the code that wrote them.

Each ``Audit…`` tuple names the columns of its statement in order. Everything is read in one REPEATABLE READ
transaction, so that a run in progress is audited as it was at one moment.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import text
from sqlalchemy.orm import Session


class AuditGroup(NamedTuple):
    id: str
    purpose: str
    size: int
    status: str
    drop_reason: str | None
    batch_id: str | None
    dispatched_at: datetime


class AuditExecution(NamedTuple):
    id: str
    group_id: str
    status: str
    disposition: str | None
    reward_id: str | None
    terminal_at: datetime | None


class AuditAttempt(NamedTuple):
    id: str
    execution_id: str
    number: int
    status: str
    end_reason: str | None
    failure: str | None


class AuditCall(NamedTuple):
    id: str
    attempt_id: str
    execution_id: str
    status: str
    temperature: float
    context_node_id: str | None
    context_offset: int | None
    sampled_node_id: str | None
    num_input_tokens: int
    num_output_tokens: int
    input_sha256: str | None
    output_sha256: str | None
    failure: str | None


class AuditSpan(NamedTuple):
    """The policy versions that sampled a committed call: ``[[version, num_tokens], ...]``."""

    call_id: str
    versions: list[list[int]]
    mixed_kv_tokens: int


class AuditAbort(NamedTuple):
    """A sampled node that ended by an abort."""

    attempt_id: str
    call_id: str
    num_tokens: int


class AuditNode(NamedTuple):
    id: str
    attempt_id: str
    call_id: str
    parent_id: str | None
    parent_offset: int
    position: int
    kind: str
    num_tokens: int
    token_ids: bytes
    logprobs: bytes | None
    versions: list[list[int]] | None
    mixed_kv_tokens: int


class AuditReward(NamedTuple):
    id: str
    execution_id: str
    evaluation_id: str | None
    value: float
    evaluation_status: str | None
    evaluation_execution_id: str | None


class AuditBatch(NamedTuple):
    id: str
    version: int
    status: str
    num_executions: int


class AuditBatchExecution(NamedTuple):
    batch_id: str
    execution_id: str
    reward_id: str
    advantage: float
    num_targets: int


class AuditTrajectory(NamedTuple):
    id: str
    execution_id: str
    batch_id: str
    leaf_node_id: str
    num_tokens: int
    num_targets: int
    target_node_ids: list[str]


class AuditMicroStep(NamedTuple):
    batch_id: str
    number: int
    kind: str
    status: str
    trajectory_ids: list[str]


class AuditContribution(NamedTuple):
    id: str
    batch_id: str
    status: str
    micro_steps: list[int]


class AuditVersion(NamedTuple):
    version: int
    sha256: str
    batch_id: str | None
    checkpoint_version: int
    checkpoint_sha256: str
    weights_key: str


class AuditBlob(NamedTuple):
    """An S3 object that the run needs, and the id of the row that needs it."""

    owner: str
    key: str
    sha256: str
    num_bytes: int
    status: str


class AuditCell(NamedTuple):
    id: str
    capacity: int


class AuditTransition(NamedTuple):
    id: int
    cell_id: str
    from_role: str
    to_role: str
    at: datetime


@dataclass(frozen=True)
class RunRows:
    """A run's rows, except its tree nodes, which are read one execution at a time."""

    status: str
    config: dict[str, Any]
    """The newest resolved run file."""
    groups: list[AuditGroup]
    executions: list[AuditExecution]
    attempts: list[AuditAttempt]
    calls: list[AuditCall]
    spans: list[AuditSpan]
    aborts: list[AuditAbort]
    rewards: list[AuditReward]
    batches: list[AuditBatch]
    batch_executions: list[AuditBatchExecution]
    trajectories: list[AuditTrajectory]
    micro_steps: list[AuditMicroStep]
    contributions: list[AuditContribution]
    versions: list[AuditVersion]
    blobs: list[AuditBlob]
    cells: list[AuditCell]
    transitions: list[AuditTransition]


GROUPS = """
SELECT id, purpose, size, status, drop_reason, batch_id, dispatched_at
FROM query_group WHERE run_id = :run ORDER BY index"""

EXECUTIONS = """
SELECT id, group_id, status, disposition, reward_id, terminal_at
FROM execution WHERE run_id = :run ORDER BY id"""

ATTEMPTS = """
SELECT id, execution_id, number, status, end_reason, failure
FROM attempt WHERE run_id = :run ORDER BY execution_id, number"""

CALLS = """
SELECT id, attempt_id, execution_id, status, coalesce((sampling ->> 'temperature')::float8, 1),
       context_node_id, context_offset, sampled_node_id, num_input_tokens, num_output_tokens,
       input_sha256, output_sha256, failure
FROM model_call WHERE run_id = :run ORDER BY attempt_id, index"""

SPANS = """
SELECT c.id, n.versions, n.mixed_kv_tokens
FROM model_call c JOIN tree_node n ON n.id = c.sampled_node_id
WHERE c.run_id = :run AND c.status = 'committed' AND jsonb_typeof(n.versions) = 'array'
ORDER BY c.id"""

ABORTS = """
SELECT n.attempt_id, n.call_id, n.num_tokens
FROM tree_node n JOIN attempt a ON a.id = n.attempt_id
WHERE a.run_id = :run AND n.kind = 'sampled' AND n.finish_reason = 'abort'"""

NODES = """
SELECT n.id, n.attempt_id, n.call_id, n.parent_id, n.parent_offset, n.position, n.kind, n.num_tokens,
       n.token_ids, n.logprobs, n.versions, n.mixed_kv_tokens
FROM tree_node n JOIN attempt a ON a.id = n.attempt_id
WHERE a.execution_id = :execution ORDER BY n.attempt_id, n.index"""

REWARDS = """
SELECT r.id, r.execution_id, r.evaluation_id, r.value, v.status, v.execution_id
FROM reward r JOIN execution e ON e.id = r.execution_id LEFT JOIN evaluation v ON v.id = r.evaluation_id
WHERE e.run_id = :run ORDER BY r.id"""

BATCHES = """
SELECT id, version, status, num_executions FROM batch WHERE run_id = :run ORDER BY version"""

BATCH_EXECUTIONS = """
SELECT x.batch_id, x.execution_id, x.reward_id, x.advantage, x.num_targets
FROM batch_execution x JOIN batch b ON b.id = x.batch_id
WHERE b.run_id = :run ORDER BY b.version, x.execution_id"""

TRAJECTORIES = """
SELECT t.id, t.execution_id, t.batch_id, t.leaf_node_id, t.num_tokens, t.num_targets, t.target_node_ids
FROM trajectory t JOIN batch b ON b.id = t.batch_id
WHERE b.run_id = :run ORDER BY b.version, t.id"""

MICRO_STEPS = """
SELECT m.batch_id, m.index, m.kind, m.status, m.trajectory_ids
FROM micro_step m JOIN batch b ON b.id = m.batch_id
WHERE b.run_id = :run ORDER BY b.version, m.index"""

CONTRIBUTIONS = """
SELECT c.id, c.batch_id, c.status, c.micro_steps
FROM contribution c JOIN batch b ON b.id = c.batch_id
WHERE b.run_id = :run ORDER BY c.id"""

VERSIONS = """
SELECT p.version, p.sha256, p.batch_id, c.version, c.sha256, c.weights_key
FROM policy_version p JOIN checkpoint c ON c.id = p.checkpoint_id
WHERE p.run_id = :run ORDER BY p.version"""

BLOBS = """
SELECT needed.owner, b.key, b.sha256, b.num_bytes, b.status
FROM (
    SELECT c.id || ' (weights)' AS owner, c.weights_key AS key
    FROM policy_version p JOIN checkpoint c ON c.id = p.checkpoint_id WHERE p.run_id = :run
    UNION ALL
    SELECT c.id || ' (optimizer)', c.optimizer_key
    FROM policy_version p JOIN checkpoint c ON c.id = p.checkpoint_id
    WHERE p.run_id = :run AND c.optimizer_key IS NOT NULL
    UNION ALL
    SELECT s.id, s.blob_key
    FROM snapshot s JOIN execution e ON e.id = s.execution_id WHERE e.run_id = :run
) needed JOIN blob b ON b.key = needed.key ORDER BY needed.owner"""

CELLS = "SELECT id, capacity FROM cell WHERE run_id = :run ORDER BY index"

TRANSITIONS = """
SELECT t.id, t.cell_id, t.from_role, t.to_role, t.at
FROM cell_transition t JOIN cell c ON c.id = t.cell_id WHERE c.run_id = :run ORDER BY t.id"""

R = TypeVar("R", bound=NamedTuple)


def freeze(session: Session) -> None:
    """Make the transaction one read-only snapshot. This must be its first statement."""
    session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))


def has_run(session: Session, run: str) -> bool:
    """Return whether there is a run of that name."""
    return session.execute(text("SELECT 1 FROM run WHERE id = :run"), {"run": run}).first() is not None


def read_run(session: Session, run: str) -> RunRows | None:
    """Return the run's rows, or None if it does not exist or has no configuration."""
    head = session.execute(
        text(
            "SELECT r.status, c.resolved FROM run r JOIN run_config c ON c.run_id = r.id "
            "WHERE r.id = :run ORDER BY c.revision DESC LIMIT 1"
        ),
        {"run": run},
    ).first()
    if head is None:
        return None

    def of_run(kind: type[R], statement: str) -> list[R]:
        return _read(session, kind, statement, run=run)

    return RunRows(
        status=head[0],
        config=head[1],
        groups=of_run(AuditGroup, GROUPS),
        executions=of_run(AuditExecution, EXECUTIONS),
        attempts=of_run(AuditAttempt, ATTEMPTS),
        calls=of_run(AuditCall, CALLS),
        spans=of_run(AuditSpan, SPANS),
        aborts=of_run(AuditAbort, ABORTS),
        rewards=of_run(AuditReward, REWARDS),
        batches=of_run(AuditBatch, BATCHES),
        batch_executions=of_run(AuditBatchExecution, BATCH_EXECUTIONS),
        trajectories=of_run(AuditTrajectory, TRAJECTORIES),
        micro_steps=of_run(AuditMicroStep, MICRO_STEPS),
        contributions=of_run(AuditContribution, CONTRIBUTIONS),
        versions=of_run(AuditVersion, VERSIONS),
        blobs=of_run(AuditBlob, BLOBS),
        cells=of_run(AuditCell, CELLS),
        transitions=of_run(AuditTransition, TRANSITIONS),
    )


def nodes_of(session: Session, execution: str) -> list[AuditNode]:
    """Return the tree nodes of all attempts of an execution, with token ids and log-probabilities."""
    return _read(session, AuditNode, NODES, execution=execution)


def _read(session: Session, kind: type[R], statement: str, **values: str) -> list[R]:
    return [kind._make(row) for row in session.execute(text(statement), values)]
