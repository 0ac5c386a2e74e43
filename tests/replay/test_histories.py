"""Workflow code must replay what earlier code recorded: change it with ``patched``, or this fails."""

import asyncio
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from gyre.durable.client import pydantic_data_converter
from workflows.registry import WORKFLOWS, runner

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def replay(history: WorkflowHistory) -> None:
    replayer = Replayer(workflows=WORKFLOWS, workflow_runner=runner(), data_converter=pydantic_data_converter)
    asyncio.run(replayer.replay_workflow(history))


def test_every_workflow_has_a_recorded_history() -> None:
    assert {path.stem for path in HISTORIES} == {workflow.__name__ for workflow in WORKFLOWS}


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_recorded_history_replays(path: Path) -> None:
    replay(WorkflowHistory.from_json(path.stem, path.read_text()))


def test_a_reordered_history_does_not_replay() -> None:
    """The replayer can fail: here two activities of a Rollout are swapped."""
    path = next(path for path in HISTORIES if path.stem == "Rollout")
    text = path.read_text()
    swapped = (
        text.replace('"provision_workspace"', '"x"')
        .replace('"seal_attempt"', '"provision_workspace"')
        .replace('"x"', '"seal_attempt"')
    )
    assert swapped != text
    with pytest.raises(Exception, match=r"(?i)nondeterminism"):
        replay(WorkflowHistory.from_json("Rollout", swapped))
