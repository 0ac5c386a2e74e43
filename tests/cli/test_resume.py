"""A refused resume leaves the run's rows unchanged."""

import socket
from pathlib import Path

import pytest

from app.cli import start_run
from app.stack.files import StateDir
from app.stack.run_record import RunRecord, write_run
from db import run_state, runs
from db.session import Database, connect, transaction
from gyre.contracts.errors import BadInput
from gyre.contracts.lifecycle import RunStatus
from gyre.settings import Services
from gyre.settings.runfile import load_run_file


def checked_run(folder: Path, name: str) -> start_run.CheckedRun:
    """Return a run without tasks whose model is never read."""
    file = folder / "run.toml"
    file.write_text(
        f'[run]\nname = "{name}"\nupdates = 1\n'
        '[model]\npath = "model"\ncontext_tokens = 1024\n[tasks]\ntrain = "tasks"\n'
    )
    return start_run.CheckedRun(load_run_file(file), train=[], heldout=[])


def test_a_run_that_does_not_exist_cannot_be_resumed(
    tmp_path: Path, postgres_dsn: str, database: Database
) -> None:
    services = Services(
        temporal_address="127.0.0.1:1", postgres_dsn=postgres_dsn, s3_access_key="k", s3_secret_key="s"
    )
    with pytest.raises(BadInput, match="no run 'r' to resume"):
        start_run.record(checked_run(tmp_path, "r"), services, resume=True)
    with transaction(database) as session:
        assert runs.find(session, "r") is None


@pytest.mark.parametrize(("end", "failure"), [(RunStatus.STOPPED, None), (RunStatus.FAILED, "no luck")])
def test_a_refused_resume_keeps_the_status_that_the_run_ended_with(
    tmp_path: Path, services: Services, short_folder: Path, end: RunStatus, failure: str | None
) -> None:
    checked = checked_run(tmp_path, f"refused-{end}")
    start_run.record(checked, services, resume=False)
    engine = connect(services.postgres_dsn)
    with transaction(engine) as session:
        run_state.advance_status(session, checked.name, end, failure=failure)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        record = RunRecord(
            run=checked.name,
            services=services,
            harness_slots=1,
            evaluate_slots=1,
            gateway_ports=[taken.getsockname()[1]],
            engine_port=1,
            wanted=False,
        )
        write_run(StateDir(short_folder / ".gyre"), record)
        with pytest.raises(BadInput, match="is used by another process"):
            start_run.launch(checked, short_folder / ".gyre", resume=True)
    with transaction(engine) as session:
        row = runs.find(session, checked.name)
        assert row is not None
        assert (row.status, row.failure) == (end, failure)
    engine.dispose()
