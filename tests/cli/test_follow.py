"""Following a run survives a restart of Postgres, and ends with one sentence when Postgres stays away."""

from pathlib import Path

import pytest

from app.cli import follow_run
from app.stack.files import StateDir
from app.stack.services_record import ensure_services_record
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


def test_following_continues_while_postgres_is_away() -> None:
    polls = iter([RunStatus.RUNNING, None, None, RunStatus.STOPPED])

    def poll() -> RunStatus:
        status = next(polls, None)
        if status is None:
            raise BadInput("Postgres cannot be read")
        return status

    run = RunId("r")
    assert follow_run.follow(ELSEWHERE, run, poll, poll_s=0) is RunStatus.STOPPED
    with pytest.raises(GyreError, match="Postgres stayed away for 0 s") as away:
        follow_run.follow(ELSEWHERE, run, poll, poll_s=0, away_s=0)
    assert not isinstance(away.value, BadInput)


def test_following_ends_when_the_services_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYRE_STATE_DIR", str(tmp_path / ".gyre"))
    state = StateDir(tmp_path / ".gyre")
    state.make()
    services = ensure_services_record(state).services()

    def poll() -> RunStatus:
        raise BadInput("Postgres cannot be read")

    with pytest.raises(GyreError, match="were stopped; run r continues after `gyre up`"):
        follow_run.follow(services, RunId("r"), poll, poll_s=0)
