"""A state directory whose services a test may kill."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app import stack
from app.stack.control import ProcessStatus


@pytest.fixture(scope="module")
def state_dir() -> Iterator[Path]:
    """Return a state directory for the tests of a module, each of which calls ``ensure_up`` itself."""
    folder = Path(tempfile.mkdtemp(prefix="gyre-"))
    yield folder / ".gyre"
    stack.down(folder / ".gyre")
    shutil.rmtree(folder)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Return a function that waits until a condition holds and fails after a minute."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it never became true"
            time.sleep(0.05)

    return wait


@pytest.fixture
def process(state_dir: Path) -> Callable[[str], ProcessStatus]:
    """Return a function that asks the keeper for the current status of one process."""

    def look(name: str) -> ProcessStatus:
        found = stack.status(state_dir)
        assert found is not None, "no keeper answers"
        return next(each for each in found.processes if each.name == name)

    return look
