"""Kill -9 in the middle of a run: the run finishes, and the audit finds nothing wrong."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from sqlalchemy import func, select

from db.models import ExecutionRow, ModelCallRow, PolicyVersionRow
from db.session import transaction
from tests.e2e.conftest import Installation

pytestmark = pytest.mark.timeout(600)


def start(installation: Installation, name: str) -> Path:
    path = installation.run_file(name)
    installation.gyre("run", str(path), "--detach")
    return path


def in_mid_run(installation: Installation, name: str) -> bool:
    """Return whether some executions have ended and others run."""
    with transaction(installation.database) as session:
        rows = session.execute(
            select(ExecutionRow.status, func.count())
            .where(ExecutionRow.run_id == name)
            .group_by(ExecutionRow.status)
        )
        counts = {row[0]: row[1] for row in rows}
        calls = session.scalar(select(func.count()).where(ModelCallRow.run_id == name)) or 0
    return counts.get("running", 0) > 0 and counts.get("terminal", 0) > 0 and calls > 3


def after_first_update(installation: Installation, name: str) -> bool:
    with transaction(installation.database) as session:
        query = select(func.max(PolicyVersionRow.version)).where(PolicyVersionRow.run_id == name)
        return (session.scalar(query) or 0) >= 1 and in_mid_run(installation, name)


def check(installation: Installation, name: str) -> None:
    shown = installation.until_finished(name)
    assert shown["account"]["trained"] == 4
    assert all(shown["checks"].values()), shown["checks"]
    report = installation.json("audit", name)
    assert report["violations"] == []


def kill(installation: Installation, process: str) -> None:
    os.kill(installation.pid(process), signal.SIGKILL)


def test_a_run_survives_a_killed_worker_and_a_killed_temporal_server(installation: Installation) -> None:
    """Workflows resume from their histories; activities re-attach to the harnesses that kept running."""
    start(installation, "kill-control")
    installation.until(lambda: in_mid_run(installation, "kill-control"))
    kill(installation, "kill-control/worker")
    installation.until(lambda: after_first_update(installation, "kill-control"))
    kill(installation, "temporal")
    check(installation, "kill-control")


def test_a_run_survives_a_killed_gateway_and_a_killed_cell(installation: Installation) -> None:
    """Harnesses wait at the gateway's address, and calls wait for an engine; no harness sees an error."""
    start(installation, "kill-both")
    installation.until(lambda: in_mid_run(installation, "kill-both"))
    kill(installation, "kill-both/gateway")
    installation.until(lambda: after_first_update(installation, "kill-both"))
    kill(installation, "kill-both/cell-0")
    check(installation, "kill-both")


def test_a_stopped_run_resumes(installation: Installation) -> None:
    path = start(installation, "stopped")
    installation.until(lambda: in_mid_run(installation, "stopped"))
    installation.gyre("stop", "stopped")
    assert installation.json("show", "stopped")["status"] == "stopped"
    installation.gyre("run", str(path), "--resume", "--detach")
    check(installation, "stopped")


@pytest.mark.soak
def test_a_run_survives_the_loss_of_temporals_data(installation: Installation) -> None:
    """It resumes from Postgres and S3 alone."""
    path = start(installation, "wiped")
    installation.until(lambda: after_first_update(installation, "wiped"))
    installation.gyre("down")
    shutil.rmtree(installation.state_dir / "temporal")
    installation.gyre("up")
    installation.gyre("run", str(path), "--resume", "--detach")
    check(installation, "wiped")
