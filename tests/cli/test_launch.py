"""Starting a run: bad input is refused before anything is made, and a resume may change live keys only."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from app.cli import follow_run, start_run, workflow_client
from db import run_state, runs
from db.models import RunConfigRow, TaskRow
from db.session import Database, transaction
from gyre.contracts.errors import BadInput, GyreError
from gyre.contracts.ids import RunId
from gyre.contracts.lifecycle import RunStatus
from gyre.settings import Services
from tests.settings.model_folder import write_model

Gyre = Callable[..., tuple[int, str, str]]
RUN_FILE = """
[run]
name = "r"
updates = {updates}
[model]
path = "model"
context_tokens = {context_tokens}
[sampling]
max_tokens = 64
[tasks]
train = "tasks"
"""
UNREACHABLE = """
[services]
temporal_address = "127.0.0.1:1"
postgres_dsn = "postgresql://nobody@127.0.0.1:1/gyre"
s3_access_key = "key"
s3_secret_key = "secret"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run file, a model and a task that pass every check."""
    monkeypatch.setenv("GYRE_STATE_DIR", str(tmp_path / ".gyre"))
    write_model(tmp_path / "model")
    task = tmp_path / "tasks" / "one"
    (task / "tests").mkdir(parents=True)
    (task / "instruction.md").write_text("do it")
    (task / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt")
    write_run_file(tmp_path)
    return tmp_path


def write_run_file(folder: Path, *, updates: int = 3, context_tokens: int = 256, more: str = "") -> Path:
    file = folder / "run.toml"
    file.write_text(RUN_FILE.format(updates=updates, context_tokens=context_tokens) + more)
    return file


def test_a_dry_run_checks_everything_and_makes_nothing(folder: Path, gyre: Gyre) -> None:
    code, out, _ = gyre("run", str(folder / "run.toml"), "--dry-run", "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["run"], document["train_tasks"]) == ("r", 1)
    assert document["resolved"]["run"]["updates"] == 3
    assert not (folder / ".gyre").exists()


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _with(name: str, text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_text(text)

    return write


def _same_task_in_both_splits(folder: Path) -> None:
    shutil.copytree(folder / "tasks" / "one", folder / "heldout" / "other")
    write_run_file(folder, more='heldout = "heldout"\n')


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_without("model/config.json"), "no config.json"),
        (_with("model/config.json", '{"model_type": "llama"}'), "model_type is 'llama' (allowed: qwen3)"),
        (_with("model/config.json", "{"), "cannot be read"),
        (_without("model/model.safetensors"), "no model.safetensors"),
        (_without("model/tokenizer.json"), "no tokenizer.json"),
        (_with("model/tokenizer_config.json", "{}"), "no chat template"),
        (_without("tasks/one/instruction.md"), "no instruction.md"),
        (_without("run.toml"), "no such file"),
        (lambda folder: write_run_file(folder, context_tokens=4096), "the model has 512 positions"),
        (lambda folder: write_run_file(folder, more="[model2]\n"), "unknown key 'model2'"),
        (lambda folder: write_run_file(folder, updates=0), "run.updates = 0"),
        (lambda folder: write_run_file(folder, more='heldout = "tasks"\n'), "rename one of them"),
        (_same_task_in_both_splits, "'other' in tasks.heldout equals 'one' in tasks.train"),
        (
            lambda folder: write_run_file(folder, more="[cells]\ntensor_parallel = 4\n"),
            "cells.tensor_parallel = 4 does not divide the model's num_key_value_heads = 2",
        ),
        (
            lambda folder: write_run_file(folder, more='[cells]\ndevice = "cuda"\n'),
            "cells.device = 'cuda': torch finds no GPU",
        ),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_made(
    folder: Path,
    gyre: Gyre,
    spoil: Callable[[Path], object],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    spoil(folder)
    code, out, err = gyre("run", str(folder / "run.toml"))
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert not (folder / ".gyre").exists()


def test_an_unreachable_service_is_named_by_its_key(folder: Path, gyre: Gyre) -> None:
    write_run_file(folder, more=UNREACHABLE)
    code, _, err = gyre("run", str(folder / "run.toml"))
    assert code == 2
    assert "services.postgres_dsn: Postgres at 127.0.0.1:1/gyre cannot be used" in err
    assert not (folder / ".gyre").exists()


@pytest.fixture
def on_database(postgres_dsn: str) -> Services:
    return Services(
        temporal_address="127.0.0.1:1", postgres_dsn=postgres_dsn, s3_access_key="k", s3_secret_key="s"
    )


def test_starting_a_run_whose_name_is_taken_is_refused(folder: Path, on_database: Services) -> None:
    checked = start_run.check(folder / "run.toml")
    start_run.record(checked, on_database, resume=False)
    with pytest.raises(BadInput, match="run 'r' exists already"):
        start_run.record(checked, on_database, resume=False)


def test_resuming_keeps_one_revision_and_one_row_per_task(
    folder: Path, on_database: Services, database: Database
) -> None:
    checked = start_run.check(folder / "run.toml")
    for resume in (False, True, True):
        start_run.record(checked, on_database, resume=resume)
    with transaction(database) as session:
        assert session.scalars(select(RunConfigRow.revision)).all() == [0]
        assert session.scalars(select(TaskRow.id)).all() == ["run/r/task/one"]


def test_resuming_records_changed_live_keys_and_refuses_changed_frozen_keys(
    folder: Path, on_database: Services, database: Database
) -> None:
    start_run.record(start_run.check(folder / "run.toml"), on_database, resume=False)
    assert start_run.record(start_run.check(write_run_file(folder, updates=9)), on_database, resume=True) == 1
    with transaction(database) as session:
        latest = runs.latest_config(session, "r")
        assert latest is not None
        assert (latest.revision, latest.resolved["run"]["updates"]) == (1, 9)
    frozen = start_run.check(write_run_file(folder, context_tokens=128))
    with pytest.raises(BadInput, match=r"model\.context_tokens: was 256, now 128"):
        start_run.record(frozen, on_database, resume=True)
    with transaction(database) as session:
        latest = runs.latest_config(session, "r")
        assert latest is not None
        assert latest.revision == 1


def test_a_stopped_run_can_be_resumed_and_a_finished_one_cannot(
    folder: Path, on_database: Services, database: Database
) -> None:
    checked = start_run.check(folder / "run.toml")
    start_run.record(checked, on_database, resume=False)
    with transaction(database) as session:
        assert run_state.mark_stopped(session, RunId("r")) == RunStatus.STOPPED
    start_run.record(checked, on_database, resume=True)
    with transaction(database) as session:
        run_state.advance_status(session, "r", RunStatus.FINISHED)
    with pytest.raises(BadInput, match="has finished"):
        start_run.record(checked, on_database, resume=True)
    with transaction(database) as session:
        assert run_state.mark_stopped(session, RunId("r")) == RunStatus.FINISHED, "terminal states are final"


def test_a_workflow_is_started_joined_cancelled_and_started_anew(services: Services) -> None:
    run = RunId("attach")

    async def open_ids() -> list[str]:
        async with workflow_client.connected(services) as client:
            return await workflow_client.open_workflows(client, run)

    async def body() -> None:
        await workflow_client.start(services, run)
        await workflow_client.start(services, run)
        assert await open_ids() == ["run/attach"]
        # No worker reacts to the cancellation, so the workflow is terminated.
        await workflow_client.cancel(services, run, limit_s=0.3)
        assert await workflow_client.wait_closed(services, run, limit_s=10)
        await workflow_client.start(services, run)
        assert await open_ids() == ["run/attach"]
        await workflow_client.cancel(services, run, limit_s=0.3)

    asyncio.run(body())


def test_a_run_whose_workflow_has_closed_is_not_followed_forever(services: Services) -> None:
    run, num_polls = RunId("closed"), 0

    def poll() -> RunStatus:
        nonlocal num_polls
        num_polls += 1
        return RunStatus.RUNNING if num_polls < 100 else RunStatus.FINISHED

    asyncio.run(workflow_client.start(services, run))
    assert follow_run.follow(services, run, poll, poll_s=0, check_s=0) is RunStatus.FINISHED
    asyncio.run(workflow_client.cancel(services, run, limit_s=0.3))
    num_polls = 0
    with pytest.raises(GyreError, match="run 'closed' is running but its workflow has closed"):
        follow_run.follow(services, run, poll, poll_s=0, check_s=0)
    assert num_polls == 2, "gyre stop closes the workflow before it marks the run"


def test_following_continues_while_temporal_is_away(on_database: Services) -> None:
    polls = iter([RunStatus.RUNNING] * 3 + [RunStatus.STOPPED])
    status = follow_run.follow(on_database, RunId("r"), lambda: next(polls), poll_s=0, check_s=0)
    assert status is RunStatus.STOPPED


@pytest.mark.parametrize(("status", "left"), [(RunStatus.FAILED, []), (RunStatus.FINISHED, ["run/over"])])
def test_workflows_that_a_failed_run_left_open_are_cancelled(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: RunStatus, left: list[str]
) -> None:
    monkeypatch.setattr(follow_run, "CLOSE_S", 0.5)
    run = RunId("over")

    async def open_ids() -> list[str]:
        async with workflow_client.connected(services) as client:
            return await workflow_client.open_workflows(client, run)

    async def begin() -> None:
        await workflow_client.start(services, run)
        while await open_ids() != ["run/over"]:
            await asyncio.sleep(0.1)

    asyncio.run(begin())
    follow_run.settle(tmp_path / ".gyre", run, services, status)
    if not left:
        asyncio.run(workflow_client.wait_closed(services, run, limit_s=10))
    assert asyncio.run(open_ids()) == left
    asyncio.run(workflow_client.cancel(services, run, limit_s=0.3))
