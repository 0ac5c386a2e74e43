"""Processes left by a killed keeper are listed and ended; unusable state directories are reported."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app import stack
from app.cli.main import main
from app.stack.files import StateDir
from app.stack.ledger import Entry, Ledger
from app.stack.orphans import MARK, RUN_MARK
from gyre.contracts.errors import BadInput
from gyre.host.processes import identify


@pytest.fixture
def left(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process of run ``lost`` that is in the ledger while no keeper runs."""
    monkeypatch.setenv("GYRE_STATE_DIR", str(state_dir))
    state = StateDir(state_dir)
    state.make()
    process = subprocess.Popen(["sleep", "600"], env={MARK: str(state_dir), RUN_MARK: "lost"})
    identity = identify(process.pid)
    assert identity is not None
    Ledger(state.processes).put("lost/worker", Entry(process=identity, fingerprint="x"))
    yield process
    process.kill()
    process.wait()


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_ps_lists_processes_without_a_keeper_and_stop_run_ends_them(
    left: subprocess.Popen[bytes],
    state_dir: Path,
    capsys: pytest.CaptureFixture[str],
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    code, out, _ = command(capsys, "ps")
    assert code == 0
    assert "lost/worker" in out
    assert str(left.pid) in out
    assert "the keeper is gone; `gyre up` brings it back" in out
    stack.stop_run(state_dir, "lost")
    eventually(lambda: left.poll() is not None)
    assert stack.unkept(state_dir) == []


def test_a_state_directory_whose_name_is_too_long_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GYRE_STATE_DIR", str(tmp_path / ("x" * 300)))
    for arguments in (("up",), ("down",), ("ps",), ("runs",), ("show", "r")):
        code, out, err = command(capsys, *arguments)
        assert (code, out) == (2, ""), arguments
        assert "File name too long" in err
        assert err.count("gyre:") == 1


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / ".gyre" / "logs" / "keeper.log").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"keeper\.log cannot be written: Is a directory"):
        stack.ensure_up(tmp_path / ".gyre")
