"""The keeper finds the leftovers of a run by the folder in their command lines."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.stack.orphans import leftovers

SLEEPS = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)")


@pytest.fixture
def orphan() -> Iterator[Callable[..., int]]:
    """Start a child with these arguments, as the keeper inherits a harness; return its pid."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> int:
        started.append(subprocess.Popen([*SLEEPS, *arguments], env={}))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_run_whose_name_extends_another_keeps_its_processes(
    tmp_path: Path, orphan: Callable[..., int]
) -> None:
    """The end of run q1 once killed the harnesses of run q10."""
    runs = tmp_path / "runs"
    mine = {
        orphan(f"{runs}/q1/attempts/a"),
        orphan(f"{runs}/q1"),
        orphan(f"--boot={runs}/q1/worker.boot.json"),
    }
    orphan(f"{runs}/q10/attempts/a")
    orphan(f"{runs}/q1-again")
    assert {process.pid for process in leftovers(tmp_path, "q1")} == mine


def test_an_orphan_that_names_no_run_is_ended_with_everything_only(
    tmp_path: Path, orphan: Callable[..., int]
) -> None:
    unnamed, named = orphan("elsewhere"), orphan(f"{tmp_path}/runs/q1/attempts/a")
    assert {process.pid for process in leftovers(tmp_path, "q1")} == {named}
    assert {unnamed, named} <= {process.pid for process in leftovers(tmp_path)}
