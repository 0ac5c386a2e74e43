"""Recording many calls by one statement and recording them one by one write equal rows."""

from collections.abc import Sequence
from itertools import count, zip_longest
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Text, cast, select
from sqlalchemy.orm import Session

from db import attempts, calls, recording
from db.calls import NewCall, NewNode, Outcome
from db.direct import Statement
from db.models import ModelCallRow, TreeNodeRow
from db.session import Database, transaction
from gyre.contracts.ids import AttemptId, GroupId, call_id, execution_id, execution_of
from gyre.contracts.lifecycle import CallStatus, NodeKind

OWNER, TTL_S = "here:1/me", 30.0
TIMES = ("started_at", "committed_at", "delivered_at", "lease_expires_at")


class RecordedCall(NamedTuple):
    """One call of an attempt: its rows and how it ends."""

    new: NewCall
    sampling: dict[str, Any]
    nodes: Sequence[NewNode]
    outcome: Outcome
    ending: CallStatus
    """COMMITTED, FAILED, or IN_FLIGHT for a call that has not ended."""


def make_node(index: int, parent: NewNode | None, offset: int, ids: Sequence[int], **sampled: Any) -> NewNode:
    """A node behind ``offset`` tokens of its parent; ``sampled`` holds what only sampled nodes have."""
    return NewNode(
        index=index,
        parent=None if parent is None else parent.index,
        parent_offset=offset,
        position=0 if parent is None else parent.position + offset,
        kind=NodeKind.SAMPLED if sampled else NodeKind.CONTEXT,
        token_ids=b"".join(token.to_bytes(4, "little") for token in ids),
        **sampled,
    )


def make_call(
    tree: list[NewNode],
    parent: NewNode | None,
    offset: int,
    prompt: Sequence[int],
    spans: Sequence[tuple[int, int]] = ((7, 2),),
    *,
    ending: CallStatus = CallStatus.COMMITTED,
    document: dict[str, Any] | None = None,
    finish_reason: str = "stop",
) -> RecordedCall:
    """A call that adds ``prompt`` behind ``offset`` tokens of ``parent``, then an answer of these spans.

    Without a prompt it is a sibling: its answer hangs straight on ``parent``. The nodes of a committed
    call join ``tree``.
    """
    document = document or {"text": "é"}
    length = sum(size for _, size in spans)
    nodes = [make_node(len(tree), parent, offset, prompt)] if prompt else []
    context, context_offset = (nodes[0], len(prompt)) if nodes else (parent, offset)
    assert context is not None
    answer = make_node(
        len(tree) + len(nodes),
        context,
        context_offset,
        range(length),
        logprobs=b"\0\0\0\xbf" * length,
        versions=[list(span) for span in spans],
        mixed_kv_tokens=length // 2,
        finish_reason=finish_reason,
        match_key=f"m{len(tree)}",
    )
    nodes.append(answer)
    if ending is CallStatus.COMMITTED:
        tree.extend(nodes)
    new = NewCall("openai", "main", "key", document, answer.position, answer.position - len(prompt), "input")
    outcome = Outcome(
        context.index, context_offset, answer.index, length, len(tree), len(spans), finish_reason, "output",
        document, "run/r/cell/0", engine_ms=length,
    )  # fmt: skip
    return RecordedCall(new, {"sampling_seed": (1 << 63) - 1} | document, nodes, outcome, ending)


def record_together(database: Database, scripts: dict[AttemptId, list[RecordedCall]]) -> None:
    """Record call by call: the next call of every attempt begins, then ends, in the same statement."""
    for index, calls_now in enumerate(zip_longest(*scripts.values())):
        members = [(attempt, call) for attempt, call in zip(scripts, calls_now, strict=True) if call]
        begins = [recording.Begin(attempt, index, call.new, call.sampling) for attempt, call in members]
        assert len(_execute(database, recording.begin(begins, owner=OWNER, ttl_s=TTL_S))) == len(members)
        commits = [
            recording.Commit(call_id(attempt, index), attempt, call.nodes, call.outcome)
            for attempt, call in members
            if call.ending is CallStatus.COMMITTED
        ]
        assert len(_execute(database, recording.commit(commits, owner=OWNER))) == len(commits)
        for attempt, call in members:
            _fail(database, attempt, index, call)


def record_separately(database: Database, scripts: dict[AttemptId, list[RecordedCall]]) -> None:
    """Record each call through the ORM, in transactions of its own."""
    for attempt, script in scripts.items():
        for index, call in enumerate(script):
            with transaction(database) as session:
                begun = calls.begin(
                    session, attempt, call.new, lambda _, call=call: call.sampling, owner=OWNER, ttl_s=TTL_S
                )
            assert begun == index
            if call.ending is CallStatus.COMMITTED:
                with transaction(database) as session:
                    name = call_id(attempt, index)
                    assert calls.commit(session, name, attempt, OWNER, call.nodes, call.outcome)
            _fail(database, attempt, index, call)


def _execute(database: Database, statement: Statement) -> list[Any]:
    with database.begin() as connection:
        return list(connection.exec_driver_sql(statement.sql, statement.values))


def _fail(database: Database, attempt: AttemptId, index: int, call: RecordedCall) -> None:
    if call.ending is CallStatus.FAILED:
        with transaction(database) as session:
            calls.fail(session, call_id(attempt, index), OWNER, "engine: gone")


def stored(session: Session, attempt: AttemptId) -> list[dict[str, str | None]]:
    """The attempt's rows as Postgres spells them, so that a JSON null differs from a NULL.

    Of a time only its presence is kept, and how long a lease lasts.
    """
    execution, found = execution_of(attempt), []
    for table in (ModelCallRow, TreeNodeRow):
        columns = {
            column.name: cast(column.is_(None) if column.name in TIMES else column, Text)
            for column in table.__table__.columns
        }
        if table is ModelCallRow:
            columns["lease"] = cast(ModelCallRow.lease_expires_at - ModelCallRow.started_at, Text)
        query = select(*(column.label(name) for name, column in columns.items()))
        rows = session.execute(query.where(table.attempt_id == attempt).order_by(table.index)).mappings()
        found += [
            {name: value and value.replace(execution, "E") for name, value in row.items()} for row in rows
        ]
    return found


class BothPaths:
    """Two executions of one group: the calls of the first are recorded together, of the second separately."""

    def __init__(self, database: Database, group: GroupId) -> None:
        self._database = database
        self._executions = [execution_id(group, index) for index in range(2)]
        self._numbers = count(1)

    def require_equal_rows(self, scripts: Sequence[list[RecordedCall]]) -> None:
        """Record the scripts, one attempt for each, by either path and compare every row."""
        numbers = [next(self._numbers) for _ in scripts]
        with transaction(self._database) as session:
            together, separately = (
                [
                    AttemptId(attempts.open_attempt(session, execution, number, "here").id)
                    for number in numbers
                ]
                for execution in self._executions
            )
        record_together(self._database, dict(zip(together, scripts, strict=True)))
        record_separately(self._database, dict(zip(separately, scripts, strict=True)))
        with transaction(self._database) as session:
            for first, second, script in zip(together, separately, scripts, strict=True):
                rows = stored(session, first)
                assert rows == stored(session, second)
                committed = [call for call in script if call.ending is CallStatus.COMMITTED]
                assert len(rows) == len(script) + sum(len(call.nodes) for call in committed)


@pytest.fixture
def both(database: Database, group: GroupId) -> BothPaths:
    return BothPaths(database, group)


def conversation() -> list[RecordedCall]:
    """Every kind of call once."""
    tree: list[NewNode] = []
    first = make_call(tree, None, 0, [1, 2, 3])
    prompt, answer = tree
    return [
        first,
        make_call(tree, answer, 2, [4, 5], [(7, 1), (8, 3), (9, 1)]),
        make_call(tree, prompt, 1, [6], document={"nested": [None, {"a": 1.5}], "n": None}),
        make_call(tree, prompt, 3, [], finish_reason="length"),
        make_call(tree, answer, 2, [9], ending=CallStatus.FAILED),
        make_call(tree, None, 0, [9], ending=CallStatus.IN_FLIGHT),
    ]


def test_each_kind_of_call_is_recorded_equally(both: BothPaths) -> None:
    """First call, continuation over three versions, branch inside a node, sibling, failed and in flight."""
    both.require_equal_rows([conversation()])


def test_calls_of_several_attempts_in_one_statement_are_recorded_equally(both: BothPaths) -> None:
    both.require_equal_rows([conversation(), conversation()[:1], conversation()[:4]])


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
scalars = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | texts
numbers = st.floats(allow_nan=False, allow_infinity=False)
documents = st.dictionaries(texts, st.recursive(scalars | numbers, st.lists, max_leaves=4), max_size=3)
token_ids = st.lists(st.integers(0, (1 << 31) - 1), max_size=5)
version_spans = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=3)


@st.composite
def recorded_calls(draw: st.DrawFn) -> list[RecordedCall]:
    """The calls of one attempt; each continues, branches from or restarts what is committed before it."""
    tree: list[NewNode] = []
    script: list[RecordedCall] = []
    for _ in range(draw(st.integers(1, 4))):
        parent = draw(st.sampled_from([None, *tree]))
        offset = 0 if parent is None else draw(st.integers(1, len(parent.token_ids) // 4))
        prompt = draw(token_ids) or ([1] if parent is None else [])
        call = make_call(
            tree,
            parent,
            offset,
            prompt,
            draw(version_spans),
            ending=draw(st.sampled_from(CallStatus)),
            document=draw(documents),
            finish_reason=draw(st.sampled_from(["stop", "length"])),
        )
        script.append(call)
    return script


# Each example opens attempts of its own, so they can share one database.
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scripts=st.lists(recorded_calls(), min_size=1, max_size=3))
def test_generated_calls_are_recorded_equally(both: BothPaths, scripts: list[list[RecordedCall]]) -> None:
    both.require_equal_rows(scripts)
