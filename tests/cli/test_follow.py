"""Watching a run outlives a database that is restarted, and ends in one sentence when it is not."""

from pathlib import Path

import pytest

from app.cli import start_run
from app.stack.files import StateDir
from app.stack.record import ensure_record
from gyre.contracts.errors import BadInput, GyreError
from gyre.contracts.ids import RunId
from gyre.contracts.lifecycle import RunStatus
from gyre.settings import Services

ELSEWHERE = Services(
    temporal_address="127.0.0.1:1",
    postgres_dsn="postgresql://nobody@127.0.0.1:1/gyre",
    s3_access_key="key",
    s3_secret_key="secret",
)


def test_watching_goes_on_while_postgres_is_away() -> None:
    looks = iter([RunStatus.RUNNING, None, None, RunStatus.STOPPED])

    def look() -> RunStatus:
        status = next(looks, None)
        if status is None:
            raise BadInput("Postgres cannot be read")
        return status

    run = RunId("r")
    assert start_run.follow(ELSEWHERE, run, look, look_s=0) is RunStatus.STOPPED
    with pytest.raises(GyreError, match="Postgres stayed away for 0 s") as away:
        start_run.follow(ELSEWHERE, run, look, look_s=0, away_s=0)
    assert not isinstance(away.value, BadInput)


def test_watching_ends_when_the_services_were_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYRE_STATE_DIR", str(tmp_path / ".gyre"))
    state = StateDir(tmp_path / ".gyre")
    state.make()
    services = ensure_record(state).services()

    def look() -> RunStatus:
        raise BadInput("Postgres cannot be read")

    with pytest.raises(GyreError, match="were stopped; run r goes on after `gyre up`"):
        start_run.follow(services, RunId("r"), look, look_s=0)
