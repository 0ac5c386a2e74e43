"""Many calls recorded by one statement: what `db.calls` does for one, as far as nothing is in the way.

A member that is sealed, locked by somebody, held by another gateway or has its index taken is left out, not
waited for and no error: its caller then asks `db.calls`, which waits and says why. So one member's trouble
never reaches the others. Rows of executions and runs, whose keys are shared by the foreign keys, are locked
FOR NO KEY UPDATE everywhere: these writes do not wait for them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from db.calls import NewCall, NewNode, Outcome
from gyre.contracts.ids import AttemptId, CallId, call_id, node_id


@dataclass(frozen=True, slots=True)
class Begin:
    """A call to be written in flight under ``index``, which its attempt has not used yet."""

    attempt: AttemptId
    index: int
    new: NewCall
    sampling: Mapping[str, Any]

    @property
    def call(self) -> CallId:
        return call_id(self.attempt, self.index)


@dataclass(frozen=True, slots=True)
class Commit:
    """A call in flight to be committed; at most one of an attempt at a time."""

    call: CallId
    attempt: AttemptId
    nodes: Sequence[NewNode]
    outcome: Outcome


OPEN = """open AS (
  SELECT id, execution_id, run_id FROM attempt
  WHERE id = ANY(%(attempts)s) AND status = 'open' FOR SHARE SKIP LOCKED
)"""
"""Shared locks are held until the transaction ends, so that a seal waits for the write."""

BEGIN = f"""WITH {OPEN}
INSERT INTO model_call (
  id, attempt_id, execution_id, run_id, index, status, dialect, role, request_key, requested, sampling,
  num_input_tokens, num_reused_tokens, input_sha256, num_output_tokens, num_cached_tokens,
  num_malformed_tool_calls, lease_owner, lease_expires_at)
SELECT
  a.id, a.attempt_id, o.execution_id, o.run_id, a.index, 'in_flight', a.dialect, a.role, a.request_key,
  a.requested::jsonb, a.sampling::jsonb, a.num_input_tokens, a.num_reused_tokens, a.input_sha256, 0, 0, 0,
  %(owner)s, now() + make_interval(secs => %(ttl_s)s)
FROM unnest(
  %(id)s::text[], %(attempt_id)s::text[], %(index)s::bigint[], %(dialect)s::text[], %(role)s::text[],
  %(request_key)s::text[], %(requested)s::text[], %(sampling)s::text[], %(num_input_tokens)s::bigint[],
  %(num_reused_tokens)s::bigint[], %(input_sha256)s::text[]
) AS a(id, attempt_id, index, dialect, role, request_key, requested, sampling, num_input_tokens,
  num_reused_tokens, input_sha256)
JOIN open o ON o.id = a.attempt_id
ON CONFLICT DO NOTHING RETURNING id"""

COMMIT = f"""WITH {OPEN},
held AS (
  SELECT c.id FROM model_call c JOIN open o ON o.id = c.attempt_id
  WHERE c.id = ANY(%(call)s) AND c.lease_owner = %(owner)s AND c.status = 'in_flight'
  FOR UPDATE OF c SKIP LOCKED
),
written AS (
  INSERT INTO tree_node (
    id, attempt_id, index, call_id, parent_id, parent_offset, position, kind, num_tokens, token_ids, logprobs,
    versions, mixed_kv_tokens, finish_reason, match_key)
  SELECT
    n.id, n.attempt_id, n.index, n.call_id, n.parent_id, n.parent_offset, n.position, n.kind,
    octet_length(n.token_ids) / 4, n.token_ids, n.logprobs, n.versions::jsonb, n.mixed_kv_tokens,
    n.finish_reason, n.match_key
  FROM unnest(
    %(id)s::text[], %(attempt_id)s::text[], %(index)s::bigint[], %(call_id)s::text[], %(parent_id)s::text[],
    %(parent_offset)s::bigint[], %(position)s::bigint[], %(kind)s::text[], %(token_ids)b::bytea[],
    %(logprobs)b::bytea[], %(versions)s::text[], %(mixed_kv_tokens)s::bigint[],
    %(node_finish_reason)s::text[], %(match_key)s::text[]
  ) AS n(id, attempt_id, index, call_id, parent_id, parent_offset, position, kind, token_ids, logprobs,
    versions, mixed_kv_tokens, finish_reason, match_key)
  JOIN held h ON h.id = n.call_id
)
UPDATE model_call c SET
  status = 'committed', committed_at = now(), lease_owner = NULL, lease_expires_at = NULL,
  context_node_id = a.context_node_id, context_offset = a.context_offset, sampled_node_id = a.sampled_node_id,
  num_output_tokens = a.num_output_tokens, num_cached_tokens = a.num_cached_tokens,
  num_malformed_tool_calls = a.num_malformed_tool_calls, finish_reason = a.finish_reason,
  output_sha256 = a.output_sha256, response = a.response::jsonb, cell_id = a.cell_id, engine_ms = a.engine_ms
FROM unnest(
  %(call)s::text[], %(context_node_id)s::text[], %(context_offset)s::bigint[], %(sampled_node_id)s::text[],
  %(num_output_tokens)s::bigint[], %(num_cached_tokens)s::bigint[], %(num_malformed_tool_calls)s::bigint[],
  %(finish_reason)s::text[], %(output_sha256)s::text[], %(response)s::text[], %(cell_id)s::text[],
  %(engine_ms)s::bigint[]
) AS a(id, context_node_id, context_offset, sampled_node_id, num_output_tokens, num_cached_tokens,
  num_malformed_tool_calls, finish_reason, output_sha256, response, cell_id, engine_ms)
JOIN held h ON h.id = a.id
WHERE c.id = a.id RETURNING c.id"""


def begin(connection: Connection, begins: Sequence[Begin], *, owner: str, ttl_s: float) -> set[CallId]:
    """Write the in-flight rows as far as they can be written at once; returns the calls that were."""
    rows = [_begin_row(each) for each in begins]
    attempts = [each.attempt for each in begins]
    return _execute(
        connection, BEGIN, _columns(rows) | {"attempts": attempts, "owner": owner, "ttl_s": ttl_s}
    )


def commit(connection: Connection, commits: Sequence[Commit], *, owner: str) -> set[CallId]:
    """Write nodes and calls as far as they can be written at once; returns the calls that are committed.

    Raises IntegrityError, and writes nothing, if another gateway used a node's index.
    """
    calls = _columns([_outcome_row(each) for each in commits])
    nodes = _columns([_node_row(each, node) for each in commits for node in each.nodes])
    attempts = [each.attempt for each in commits]
    return _execute(connection, COMMIT, calls | nodes | {"attempts": attempts, "owner": owner})


def _execute(connection: Connection, statement: str, parameters: dict[str, Any]) -> set[CallId]:
    return {CallId(row[0]) for row in connection.exec_driver_sql(statement, parameters)}


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """An array for each column: the statement is the same however many rows there are."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def _begin_row(begin: Begin) -> dict[str, Any]:
    return _fields(begin.new, NewCall.__slots__) | {
        "id": begin.call,
        "attempt_id": begin.attempt,
        "index": begin.index,
        "requested": json.dumps(begin.new.requested),
        "sampling": json.dumps(begin.sampling),
    }


def _outcome_row(commit: Commit) -> dict[str, Any]:
    outcome = commit.outcome
    return _fields(outcome, (name for name in Outcome.__slots__ if not name.endswith("_node"))) | {
        "call": commit.call,
        "context_node_id": node_id(commit.attempt, outcome.context_node),
        "sampled_node_id": node_id(commit.attempt, outcome.sampled_node),
        "response": json.dumps(outcome.response),
    }


def _node_row(commit: Commit, node: NewNode) -> dict[str, Any]:
    columns = (name for name in NewNode.__slots__ if name not in ("parent", "finish_reason"))
    return _fields(node, columns) | {
        "id": node_id(commit.attempt, node.index),
        "attempt_id": commit.attempt,
        "call_id": commit.call,
        "parent_id": None if node.parent is None else node_id(commit.attempt, node.parent),
        "versions": None if node.versions is None else json.dumps(node.versions),
        "node_finish_reason": node.finish_reason,
    }


def _fields(source: NewCall | NewNode | Outcome, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}
