"""Installs the real harnesses, in the versions of the catalogue, once into the user's cache."""

import fcntl
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.adapters import Adapter, load_adapter

CACHE = Path.home() / ".cache" / "gyre"
REQUIREMENTS = Path(__file__).parent / "requirements"
TRIES = 2
INSTALL_S = 700
"""Limit of all steps and tries together; one try has half of it."""
FIRST_TEST_S = 1000
"""Limit of a test that may have to install its harness first, or wait for another session to do so."""


@functools.cache
def installed(name: str) -> Path | None:
    """Return the program of a harness, None for one that comes with Gyre. Skips where Node is missing."""
    adapter = load_adapter(name)
    if adapter.package is None:
        return None
    source = adapter.package.partition(":")[0]
    if source == "npm" and shutil.which("npm") is None:
        pytest.skip(f"{name} needs Node, which is not installed here")
    bin_folder, install = {"npm": ("node_modules/.bin", _npm), "pypi": ("bin", _pip)}[source]
    folder = CACHE / f"{name}-{adapter.version}"
    program = folder / bin_folder / (adapter.binary or "")
    _once(folder, lambda: install(adapter, folder))
    assert program.exists(), f"{adapter.package} has no program {adapter.binary}"
    return program


def _once(folder: Path, install: Callable[[], None]) -> None:
    """Install into a folder unless it is complete; a lock makes other sessions wait for the first."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "installed"
        if not done.exists():
            # An interrupted session may have left a partial folder.
            shutil.rmtree(folder, ignore_errors=True)
            install()
            done.touch()


def _npm(adapter: Adapter, folder: Path) -> None:
    package = f"{(adapter.package or '').partition(':')[2]}@{adapter.version}"
    command = ("npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), package)
    _with_retry(time.monotonic() + INSTALL_S, *command)


def _pip(adapter: Adapter, folder: Path) -> None:
    # A separate environment: the harness's dependencies must not mix with Gyre's.
    deadline = time.monotonic() + INSTALL_S
    _with_retry(deadline, os.path.realpath(sys.executable), "-m", "venv", str(folder))
    pins = REQUIREMENTS / f"{adapter.name}.txt"
    _with_retry(deadline, str(folder / "bin" / "pip"), "install", "--no-deps", "-r", str(pins))


def _with_retry(deadline: float, *command: str) -> None:
    """Run an installer, once more if a download failed or hung."""
    for left in reversed(range(TRIES)):
        limit = min(INSTALL_S / TRIES, max(1.0, deadline - time.monotonic()))
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired as error:
            problem = str(error)
        else:
            if done.returncode == 0:
                return
            problem = f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        assert left, problem
