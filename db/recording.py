"""Record many calls by one SQL statement. `db.calls` writes the same rows, one call at a time.

A call is skipped without an error if its attempt is sealed or locked, its index is taken, or another gateway
holds it. The caller then records it through `db.calls`, which waits and raises the reason, so that one call's
trouble never delays the others. Foreign keys share the keys of execution and run rows; everybody locks those
rows FOR NO KEY UPDATE, so these statements never wait for them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from db.calls import NewCall, NewNode, Outcome
from db.direct import Statement
from gyre.contracts.ids import AttemptId, CallId, call_id, node_id
from gyre.contracts.json_text import compact_json


@dataclass(frozen=True, slots=True)
class Begin:
    """A call to be written in flight under ``index``, the next one of its attempt."""

    attempt: AttemptId
    index: int
    new: NewCall
    sampling: Mapping[str, Any]

    @property
    def call(self) -> CallId:
        return call_id(self.attempt, self.index)


@dataclass(frozen=True, slots=True)
class Commit:
    """An in-flight call to be committed; a statement holds at most one per attempt."""

    call: CallId
    attempt: AttemptId
    nodes: Sequence[NewNode]
    outcome: Outcome


OPEN = """open AS (
  SELECT id, execution_id, run_id FROM attempt
  WHERE id = ANY(%(attempts)s) AND status = 'open' FOR SHARE SKIP LOCKED
)"""
"""The open attempts among the named ones, share-locked until the transaction ends so that a seal waits.

Rows that are sealed or locked are skipped without an error.
"""

BEGIN: LiteralString = f"""WITH {OPEN}
INSERT INTO model_call (
  id, attempt_id, execution_id, run_id, index, status, dialect, role, request_key, requested, sampling,
  num_input_tokens, num_reused_tokens, input_sha256, num_output_tokens, num_cached_tokens,
  num_malformed_tool_calls, lease_owner, lease_expires_at)
SELECT
  a.id, a.attempt_id, o.execution_id, o.run_id, a.index, 'in_flight', a.dialect, a.role, a.request_key,
  a.requested, a.sampling, a.num_input_tokens, a.num_reused_tokens, a.input_sha256, 0, 0, 0,
  %(owner)s, now() + make_interval(secs => %(ttl_s)s)
FROM json_to_recordset(%(calls)s) AS a(
  id text, attempt_id text, index bigint, dialect text, role text, request_key text, requested jsonb,
  sampling jsonb, num_input_tokens bigint, num_reused_tokens bigint, input_sha256 text)
JOIN open o ON o.id = a.attempt_id
ON CONFLICT DO NOTHING RETURNING id"""

# Bytes travel as hex in JSON: a token of four bytes is eight digits. The UPDATE may name nodes that the same
# statement inserts, because foreign keys are checked at its end.
COMMIT: LiteralString = f"""WITH {OPEN},
held AS (
  SELECT c.id FROM model_call c JOIN open o ON o.id = c.attempt_id
  WHERE c.id = ANY(%(ids)s) AND c.lease_owner = %(owner)s AND c.status = 'in_flight'
  FOR UPDATE OF c SKIP LOCKED
),
written AS (
  INSERT INTO tree_node (
    id, attempt_id, index, call_id, parent_id, parent_offset, position, kind, num_tokens, token_ids, logprobs,
    versions, mixed_kv_tokens, finish_reason, match_key)
  SELECT
    n.id, n.attempt_id, n.index, n.call_id, n.parent_id, n.parent_offset, n.position, n.kind,
    length(n.token_ids) / 8, decode(n.token_ids, 'hex'), decode(n.logprobs, 'hex'), n.versions,
    n.mixed_kv_tokens, n.finish_reason, n.match_key
  FROM json_to_recordset(%(nodes)s) AS n(
    id text, attempt_id text, index bigint, call_id text, parent_id text, parent_offset bigint,
    position bigint, kind text, token_ids text, logprobs text, versions jsonb, mixed_kv_tokens bigint,
    finish_reason text, match_key text)
  JOIN held h ON h.id = n.call_id
)
UPDATE model_call c SET
  status = 'committed', committed_at = now(), lease_owner = NULL, lease_expires_at = NULL,
  context_node_id = a.context_node_id, context_offset = a.context_offset, sampled_node_id = a.sampled_node_id,
  num_output_tokens = a.num_output_tokens, num_cached_tokens = a.num_cached_tokens,
  num_malformed_tool_calls = a.num_malformed_tool_calls, finish_reason = a.finish_reason,
  output_sha256 = a.output_sha256, response = a.response, cell_id = a.cell_id, engine_ms = a.engine_ms
FROM json_to_recordset(%(calls)s) AS a(
  id text, context_node_id text, context_offset bigint, sampled_node_id text, num_output_tokens bigint,
  num_cached_tokens bigint, num_malformed_tool_calls bigint, finish_reason text, output_sha256 text,
  response jsonb, cell_id text, engine_ms bigint)
JOIN held h ON h.id = a.id
WHERE c.id = a.id RETURNING c.id"""


def begin(begins: Sequence[Begin], *, owner: str, ttl_s: float) -> Statement:
    """Build the statement that writes in-flight rows; it returns the ids of the calls it wrote."""
    rows = (
        {"id": each.call, "attempt_id": each.attempt, "index": each.index, "sampling": each.sampling}
        | _fields(each.new, NEW_CALL)
        for each in begins
    )
    values = {"attempts": [each.attempt for each in begins], "owner": owner, "ttl_s": ttl_s}
    return Statement(BEGIN, values | {"calls": _document(rows)})


def commit(commits: Sequence[Commit], *, owner: str) -> Statement:
    """Build the statement that writes nodes and commits calls; it returns the ids of the calls it committed.

    It fails as a whole, with an IntegrityError, if another gateway used a node's index.
    """
    names = {"attempts": [each.attempt for each in commits], "ids": [each.call for each in commits]}
    nodes = _document(_node_row(each, node) for each in commits for node in each.nodes)
    calls = _document(_outcome_row(each) for each in commits)
    return Statement(COMMIT, names | {"owner": owner, "nodes": nodes, "calls": calls})


def _document(rows: Iterable[dict[str, Any]]) -> str:
    """Encode all rows as one JSON parameter: binding an array per column would cost more than the insert."""
    return compact_json([*rows]).decode()


def _outcome_row(commit: Commit) -> dict[str, Any]:
    outcome = commit.outcome
    return _fields(outcome, OUTCOME) | {
        "id": commit.call,
        "context_node_id": node_id(commit.attempt, outcome.context_node),
        "sampled_node_id": node_id(commit.attempt, outcome.sampled_node),
    }


def _node_row(commit: Commit, node: NewNode) -> dict[str, Any]:
    return _fields(node, NEW_NODE) | {
        "id": node_id(commit.attempt, node.index),
        "attempt_id": commit.attempt,
        "call_id": commit.call,
        "parent_id": None if node.parent is None else node_id(commit.attempt, node.parent),
        "token_ids": node.token_ids.hex(),
        "logprobs": None if node.logprobs is None else node.logprobs.hex(),
    }


def _fields(source: NewCall | NewNode | Outcome, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


NEW_CALL = NewCall.__slots__
OUTCOME = [name for name in Outcome.__slots__ if not name.endswith("_node")]
NEW_NODE = [name for name in NewNode.__slots__ if name not in ("parent", "token_ids", "logprobs")]
