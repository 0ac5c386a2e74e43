"""Kill -9 in the middle of a run: it finishes, and the witness finds nothing wrong."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from sqlalchemy import func, select

from db.models import ExecutionRow, ModelCallRow, PolicyVersionRow
from db.session import transaction
from tests.e2e.conftest import World

pytestmark = pytest.mark.timeout(600)


def start(world: World, name: str) -> Path:
    path = world.run_file(name)
    world.gyre("run", str(path), "--detach")
    return path


def in_mid_run(world: World, name: str) -> bool:
    """Some executions have ended, others run, and training has not."""
    with transaction(world.database) as session:
        rows = session.execute(
            select(ExecutionRow.status, func.count())
            .where(ExecutionRow.run_id == name)
            .group_by(ExecutionRow.status)
        )
        counts = {row[0]: row[1] for row in rows}
        calls = session.scalar(select(func.count()).where(ModelCallRow.run_id == name)) or 0
    return counts.get("running", 0) > 0 and counts.get("terminal", 0) > 0 and calls > 3


def after_first_update(world: World, name: str) -> bool:
    with transaction(world.database) as session:
        query = select(func.max(PolicyVersionRow.version)).where(PolicyVersionRow.run_id == name)
        return (session.scalar(query) or 0) >= 1 and in_mid_run(world, name)


def check(world: World, name: str) -> None:
    shown = world.until_finished(name)
    assert shown["account"]["trained"] == 4
    assert all(shown["checks"].values()), shown["checks"]
    report = world.json("audit", name)
    assert report["violations"] == []


def kill(world: World, process: str) -> None:
    os.kill(world.pid(process), signal.SIGKILL)


def test_a_killed_worker_and_a_killed_temporal_server(world: World) -> None:
    """Workflows resume from their histories; activities re-attach to the harnesses that went on."""
    start(world, "kill-control")
    world.until(lambda: in_mid_run(world, "kill-control"))
    kill(world, "kill-control/worker")
    world.until(lambda: after_first_update(world, "kill-control"))
    kill(world, "temporal")
    check(world, "kill-control")


def test_a_killed_gateway_and_a_killed_cell(world: World) -> None:
    """Harnesses wait at the gateway's address, calls wait for an engine; nobody sees an error."""
    start(world, "kill-both")
    world.until(lambda: in_mid_run(world, "kill-both"))
    kill(world, "kill-both/gateway")
    world.until(lambda: after_first_update(world, "kill-both"))
    kill(world, "kill-both/cell-0")
    check(world, "kill-both")


def test_a_stopped_run_is_taken_up_again(world: World) -> None:
    path = start(world, "stopped")
    world.until(lambda: in_mid_run(world, "stopped"))
    world.gyre("stop", "stopped")
    assert world.json("show", "stopped")["status"] == "stopped"
    world.gyre("run", str(path), "--resume", "--detach")
    check(world, "stopped")


@pytest.mark.soak
def test_wiped_temporal_data(world: World) -> None:
    """The run goes on from Postgres and S3 alone."""
    path = start(world, "wiped")
    world.until(lambda: after_first_update(world, "wiped"))
    world.gyre("down")
    shutil.rmtree(world.state_dir / "temporal")
    world.gyre("up")
    world.gyre("run", str(path), "--resume", "--detach")
    check(world, "wiped")
