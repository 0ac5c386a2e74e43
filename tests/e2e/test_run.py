"""One small run, end to end, and what it leaves in Postgres and in Temporal."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import select
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

from db.models import ExecutionRow, ModelCallRow, PolicyVersionRow, RunRow, TreeNodeRow
from db.session import transaction
from gyre.contracts.ids import RunId, attempt_id, group_id
from gyre.contracts.tokens import attempt_token
from gyre.durable import client as durable
from tests.e2e.conftest import Installation
from tests.replay.test_histories import replay
from workflows.registry import WORKFLOWS

R = TypeVar("R")
PAYLOAD_LIMIT = 16 * 1024


@pytest.fixture(scope="module")
def histories(installation: Installation, finished: str) -> list[WorkflowHistory]:
    """Every history of the run, including earlier runs of a continued workflow."""

    async def fetch(client: Client) -> list[WorkflowHistory]:
        query = f"GyreRun = '{finished}'"
        found = client.list_workflows(query).map_histories()
        return [history async for history in found]

    return with_client(installation, fetch)


def with_client(installation: Installation, use: Callable[[Client], Awaitable[R]]) -> R:
    async def main() -> R:
        return await use(await durable.connect(installation.services.temporal_address))

    return asyncio.run(main())


def test_the_account_balances(installation: Installation, finished: str) -> None:
    shown = installation.json("show", finished)
    account = shown["account"]
    assert account["dispatched"] == 4
    assert account["dispatched"] == sum(account[k] for k in ("trained", "ready", "running", "dropped"))
    assert account["trained"] == 4
    assert all(shown["checks"].values()), shown["checks"]
    assert sum(shown["dispositions"].values()) == 4 * 4 + 3 * 2


def test_the_audit_finds_no_violation(installation: Installation, finished: str) -> None:
    report = installation.json("audit", finished)
    assert report["violations"] == []
    for key in ("targets_not_sampled", "targets_repeated", "hash_mismatches"):
        assert report[key] == 0
    assert report["coverage"] == 1
    assert report["logprob_gap_mean"] <= 1e-3
    assert report["logprob_gap_p999"] <= 1e-2
    assert report["versions"] == 3
    assert 0 < report["largest_payload_bytes"] <= PAYLOAD_LIMIT


def test_every_version_was_published_with_its_bytes_counted(
    installation: Installation, finished: str
) -> None:
    with transaction(installation.database) as session:
        query = select(PolicyVersionRow).where(
            PolicyVersionRow.run_id == finished, PolicyVersionRow.version > 0
        )
        versions = session.scalars(query).all()
    assert [version.version for version in versions] == [1, 2]
    assert all((version.published_bytes or 0) > 1_000_000 for version in versions)
    assert len({version.sha256 for version in versions}) == 2


def test_every_sampled_span_has_its_version(installation: Installation, finished: str) -> None:
    with transaction(installation.database) as session:
        query = (
            select(TreeNodeRow.versions, TreeNodeRow.num_tokens)
            .join(ModelCallRow, ModelCallRow.id == TreeNodeRow.call_id)
            .where(ModelCallRow.run_id == finished, TreeNodeRow.kind == "sampled")
        )
        nodes = session.execute(query).all()
    assert {version for spans, _ in nodes for version, _ in spans} == {0, 1, 2}
    assert all(sum(count for _, count in spans) == tokens for spans, tokens in nodes)


def test_no_payload_is_large(histories: list[WorkflowHistory]) -> None:
    largest = max(len(data) for history in histories for data in payloads(history))
    assert 0 < largest <= PAYLOAD_LIMIT


def test_no_secret_is_in_a_history(
    installation: Installation, finished: str, histories: list[WorkflowHistory]
) -> None:
    with transaction(installation.database) as session:
        secret = session.get_one(RunRow, finished).secret
    execution = f"{group_id(RunId(finished), 0)}/rollout/0"
    token = attempt_token(secret, attempt_id(execution, 1))
    text = "".join(history.to_json() for history in histories)
    mark = token.rsplit(".", 1)[-1]
    assert mark not in text
    logs = (installation.state_dir / "runs" / finished).glob("**/*.log")
    assert all(mark not in path.read_text(errors="replace") for path in logs)


def test_every_history_replays(histories: list[WorkflowHistory]) -> None:
    kinds = Counter(
        history.events[0].workflow_execution_started_event_attributes.workflow_type.name
        for history in histories
    )
    assert set(kinds) == {workflow.__name__ for workflow in WORKFLOWS}

    for history in histories:
        replay(history)


def test_the_run_continued_as_new(histories: list[WorkflowHistory]) -> None:
    ended = [history.events[-1].event_type for history in histories if history.workflow_id == "run/whole"]
    assert ended.count(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW) >= 2
    assert ended.count(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED) == 1


def test_the_history_of_a_rollout_is_readable_by_itself(
    installation: Installation, finished: str, histories: list[WorkflowHistory]
) -> None:
    """It shows stages, calls, tokens, snapshot, tries of the evaluator and reward."""
    name = f"{group_id(RunId(finished), 3)}/rollout/0"
    shown = read(next(history for history in histories if history.workflow_id == name))
    with transaction(installation.database) as session:
        row = session.get_one(ExecutionRow, name)
        calls = session.scalars(select(ModelCallRow).where(ModelCallRow.execution_id == name)).all()
    assert shown["stages"] == [
        "open_attempt",
        "provision_workspace",
        "run_harness",
        "seal_attempt",
        "take_snapshot",
        "fold_execution",
    ]
    assert shown["num_calls"] == len(calls) > 0
    assert shown["num_output_tokens"] == sum(call.num_output_tokens for call in calls)
    assert shown["snapshot_id"] == f"{name}/attempt/1/snapshot"
    assert shown["num_tries"] == 1
    assert f"{shown['reward_id']}" == row.reward_id
    assert shown["disposition"] == row.disposition == "scored"


def read(history: WorkflowHistory) -> dict[str, object]:
    """Read a Rollout's history as a person would: names of activities and the fields of their results."""
    shown: dict[str, object] = {"stages": []}
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            shown["stages"].append(scheduled.activity_type.name)
        for results in (
            event.activity_task_completed_event_attributes.result,
            event.child_workflow_execution_completed_event_attributes.result,
        ):
            for payload in results.payloads:
                shown |= json.loads(payload.data)
    return shown


def payloads(history: WorkflowHistory) -> list[bytes]:
    """Return the data of every payload in a history."""
    found: list[bytes] = []

    def walk(value: object) -> None:
        if isinstance(value, dict):
            if "metadata" in value and "data" in value:
                found.append(str(value["data"]).encode())
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(json.loads(history.to_json()))
    return found


def test_services_of_the_run_file_are_used_and_none_are_started(
    installation: Installation, short_folder: Path
) -> None:
    """A run file with [services] needs no embedded server: another state directory, the same servers."""
    elsewhere = replace(installation, state_dir=short_folder / "elsewhere" / ".gyre")
    elsewhere.state_dir.parent.mkdir()
    path = elsewhere.run_file("given", updates=1)
    given = installation.services.model_dump(exclude_none=True)
    lines = [f'{key} = "{value}"' for key, value in given.items()]
    path.write_text(path.read_text() + "\n[services]\n" + "\n".join(lines) + "\n")
    shown = json.loads(elsewhere.gyre("run", str(path), "--json"))
    assert (shown["status"], shown["updates"]) == ("finished", 1)
    names = {row["name"] for row in elsewhere.json("ps")["processes"]}
    assert not names & {"postgres", "temporal", "s3"}
    elsewhere.gyre("down")
