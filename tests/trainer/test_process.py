"""``python -m gpu_workers.trainer``: two data-parallel ranks behind a socket, and how they end."""

import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from db import training
from db.object_store import BlobStore
from db.session import Database, transaction
from gpu_workers.trainer.checkpoints import fetched
from gpu_workers.trainer.ranks import Ranks
from gpu_workers.trainer.replica import Replica
from gpu_workers.trainer.trainer import Trainer
from gpu_workers.transfer import WeightReader
from gyre.contracts.boot import TrainerBoot
from gyre.contracts.engine import WeightsReference
from gyre.host.ports import HOST, choose_port
from gyre.settings import Services
from gyre.settings.runfile import OptimizerSection
from tests.trainer.models import tiny_config
from tests.trainer.rows import BATCH, CLAIMANT, RUN, Turns, add_batch, add_run, run_config

PARENT = """
import subprocess, sys, threading
thread = threading.Thread(target=subprocess.Popen, args=(sys.argv[1:],))
thread.start()
thread.join()
sys.stdin.read()
"""
"""A supervisor that starts a trainer from a thread that ends, and waits to be killed."""


def boots(folder: Path, services: Services, dsn: str) -> list[Path]:
    """Write the boot files of both ranks."""
    settings = services.model_copy(update={"postgres_dsn": dsn}).model_dump()
    rendezvous, files = f"{HOST}:{choose_port(set())}", list[Path]()
    for rank in range(2):
        boot = TrainerBoot(
            run=RUN,
            services=settings,
            state_dir=str(folder),
            host="h",
            cell=CLAIMANT.cell,
            epoch=1,
            socket=str(folder / "trainer.sock"),
            rank=rank,
            world_size=2,
            rendezvous=rendezvous,
        )
        files.append(folder / f"{rank}.json")
        files[-1].write_text(boot.model_dump_json())
    return files


def command_line(boot: Path) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "gpu_workers.trainer", "--boot", str(boot)]


@pytest.fixture
def trainer_socket(
    database: Database, services: Services, postgres_dsn: str, model_dir: Path, short_folder: Path
) -> Iterator[socket.socket]:
    add_run(database, run_config(model_dir, cells={"data_parallel": 2}, loss={"form": "truncated"}))
    add_batch(database, [Turns(1.0), Turns(-1.0)], [("grad", [(0, 0), (0, 1)]), ("grad", [(1, 0), (1, 1)])])
    first, second = boots(short_folder, services, postgres_dsn)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *command_line(first)], stdin=subprocess.PIPE)
    follower = subprocess.Popen(command_line(second), stderr=subprocess.PIPE, text=True)
    with socket.socket(socket.AF_UNIX) as connection:
        connect_to(short_folder, connection, follower)
        yield connection
    # Rank 0 outlived the thread that started it; it ends with the supervisor, and its follower with it.
    assert parent.poll() is None
    parent.kill()
    parent.communicate()
    _, error = follower.communicate(timeout=60)
    assert "rank 0 is gone" in error


def connect_to(folder: Path, connection: socket.socket, follower: subprocess.Popen[str]) -> None:
    while connection.connect_ex(str(folder / "trainer.sock")):
        assert follower.poll() is None, follower.stderr and follower.stderr.read()
        time.sleep(0.1)


def ask(connection: socket.socket, command: str, *, epoch: int = 1, **arguments: Any) -> dict[str, Any]:
    line = json.dumps({"command": command, "epoch": epoch, "arguments": arguments})
    connection.sendall(line.encode() + b"\n")
    with connection.makefile() as lines:
        return json.loads(lines.readline())


def test_commands_of_a_supervisor(
    trainer_socket: socket.socket, database: Database, services: Services, ranks: Ranks
) -> None:
    idle = {"version": None, "training": False, "busy": False}
    assert ask(trainer_socket, "status")["result"] == idle
    assert "of epoch 1, the command of 2" in ask(trainer_socket, "train", epoch=2, batch_id=BATCH)["error"]
    assert "the trainer holds None" in ask(trainer_socket, "train", batch_id=BATCH)["error"]
    assert "unknown command" in ask(trainer_socket, "fly")["error"]
    assert "KeyError" in ask(trainer_socket, "load")["error"]
    assert ask(trainer_socket, "load", version=0)["result"] == {"version": 0}

    answer = ask(trainer_socket, "train", batch_id=BATCH)
    assert answer["error"] is None
    assert ask(trainer_socket, "train", batch_id=BATCH) == answer
    assert ask(trainer_socket, "status")["result"] == {**idle, "version": 1}

    reference = WeightsReference.model_validate(
        ask(trainer_socket, "publish", version=1)["result"]["reference"]
    )
    pulled = WeightReader().pull(reference)
    assert pulled.sha256 == answer["result"]["sha256"]
    assert ask(trainer_socket, "release", version=1) == {"error": None, "retryable": True, "result": {}}
    check_against_one_rank(database, services, ranks, pulled.tensors, answer["result"]["metrics"])


def test_a_follower_that_fails_ends_the_trainer(
    database: Database, services: Services, postgres_dsn: str, model_dir: Path, short_folder: Path
) -> None:
    """The supervisor sees a process end, and whoever waits for a command sees the connection close."""
    add_run(database, run_config(model_dir, cells={"data_parallel": 2}))
    command_lines = [command_line(boot) for boot in boots(short_folder, services, postgres_dsn)]
    first, second = (subprocess.Popen(line, stderr=subprocess.PIPE, text=True) for line in command_lines)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connect_to(short_folder, connection, second)
            connection.settimeout(60)
            assert ask(connection, "load", version=0)["error"] is None
            # With three file descriptors, those of stdin, stdout and stderr, it can open no weights.
            resource.prlimit(second.pid, resource.RLIMIT_NOFILE, (3, 3))
            connection.sendall(b'{"command": "load", "epoch": 1, "arguments": {"version": 0}}\n')
            assert connection.recv(1) == b""
        stderr = [process.communicate(timeout=60)[1] for process in (first, second)]
    finally:
        first.kill()
        second.kill()
    assert [first.returncode, second.returncode] == [1, 1], stderr
    assert all("rank 1: load: " in text for text in stderr), stderr


def check_against_one_rank(
    database: Database,
    services: Services,
    ranks: Ranks,
    tensors: dict[str, torch.Tensor],
    metrics: dict[str, Any],
) -> None:
    """Train the same batch again with one rank in this process, and compare."""
    store = BlobStore(services, database)
    with transaction(database) as session:
        for table in ("policy_version", "checkpoint", "contribution"):
            where = "" if table == "contribution" else " WHERE version = 1"
            session.connection().exec_driver_sql(f"DELETE FROM {table}{where}")
        session.connection().exec_driver_sql("UPDATE query_group SET status = 'assigned'")
    replica = Replica(tiny_config(tied=True), "float32", OptimizerSection(), torch.device("cpu"))
    alone = Trainer(database, store, ranks, replica, CLAIMANT)
    alone.load(0)
    expected = alone.train(BATCH)["metrics"]
    alone.close()
    assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    with transaction(database) as session:
        stored = training.version_of(session, RUN, 1)
    assert stored
    with fetched(store, stored) as files:
        named = load_file(files.weights_file)
    # Adam's first step is lr * sign(g): where g is nothing but rounding, weights may differ.
    assert min(torch.isclose(tensors[n], named[n], atol=1e-6).float().mean() for n in named) > 0.98
