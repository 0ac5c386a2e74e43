"""Whole runs as a user starts them: ``python -m app run``, real services, separate processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from app.demo.model import build_model, save_model
from app.demo.tasks import draw_split, write_split
from app.demo.tokenizer import build_tokenizer
from app.demo.warmup import WarmupPlan, warm_up
from db.session import Database, connect
from gyre.settings import Services

RUN_FILE = """
[run]
name = "{name}"
seed = 1
updates = {updates}
[model]
path = "{folder}/model"
context_tokens = 512
[tasks]
train = "{folder}/tasks/train"
heldout = "{folder}/tasks/heldout"
[sampling]
max_tokens = 64
[schedule]
group_size = 4
groups_per_batch = 2
max_concurrent = 8
history_steps = 2
[heldout]
samples = 1
"""
LIMIT_S = 240.0


@dataclass(frozen=True)
class Installation:
    """One ``.gyre`` directory with the services up, and a policy to train."""

    state_dir: Path
    policy: Path
    services: Services
    database: Database

    def gyre(self, *arguments: str, code: int = 0) -> str:
        """Run a gyre command to its end and return what it printed."""
        done = subprocess.run(
            self._command(arguments), env=self._env(), capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.gyre(*arguments, "--json"))

    def run_file(self, name: str, *, updates: int = 2) -> Path:
        path = self.state_dir.parent / f"{name}.toml"
        path.write_text(RUN_FILE.format(name=name, updates=updates, folder=self.policy))
        return path

    def until_finished(self, name: str) -> dict[str, Any]:
        """Wait for a detached run and return what ``show`` prints about it."""
        return self.until(lambda: self._finished(name))

    def until(self, ready: Callable[[], Any]) -> Any:
        """Poll twice per second until ``ready`` returns a true value, and return it."""
        deadline = time.monotonic() + LIMIT_S
        while not (answer := ready()):
            assert time.monotonic() < deadline, "not ready in time"
            time.sleep(0.5)
        return answer

    def pid(self, process: str) -> int:
        """Return the pid of a service or a run's process, by its name in ``gyre ps``."""
        rows = self.json("ps")
        found = rows["processes"] if isinstance(rows, dict) else rows
        return next(int(row["pid"]) for row in found if row["name"] == process)

    def _finished(self, name: str) -> dict[str, Any] | None:
        shown: dict[str, Any] = self.json("show", name)
        assert shown["status"] != "failed", shown["failure"]
        return shown if shown["status"] == "finished" else None

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "app", *arguments]

    def _env(self) -> dict[str, str]:
        return {**os.environ, "GYRE_STATE_DIR": str(self.state_dir)}


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks, and a policy that was warmed up for a few seconds, so that it calls the tool now and then."""
    folder = tmp_path_factory.mktemp("policy")
    split = draw_split(1, num_train=6, num_heldout=3)
    write_split(folder / "tasks" / "train", split.train)
    write_split(folder / "tasks" / "heldout", split.heldout)
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, 1)
    plan = WarmupPlan(careful_steps=80, careless_steps=0, batch=16)
    warm_up(model, tokenizer, seed=1, excluded=split.words, plan=plan)
    save_model(model, tokenizer, folder / "model")
    return folder


@pytest.fixture(scope="session")
def installation(services: Services, short_folder: Path, policy: Path) -> Iterator[Installation]:
    database = connect(services.postgres_dsn)
    yield Installation(short_folder / ".gyre", policy, services, database)
    database.dispose()


@pytest.fixture(scope="session")
def finished(installation: Installation) -> str:
    """Name of a finished run with two updates, and held-out tasks before and after."""
    installation.gyre("run", str(installation.run_file("whole")))
    return "whole"
