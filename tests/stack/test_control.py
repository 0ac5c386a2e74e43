"""The keeper's socket: the JSON of each command, and answers to what it does not understand."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app import stack
from app.stack.control import (
    COMMANDS,
    KeeperCommand,
    ReadStatus,
    StartRun,
    StartServices,
    StopEverything,
    StopRun,
    ask,
)
from app.stack.files import StateDir
from gyre.contracts.errors import BadInput
from gyre.settings import Services

SERVICES = {
    "temporal_address": "127.0.0.1:1",
    "temporal_namespace": "default",
    "temporal_ui": None,
    "postgres_dsn": "postgresql://nobody@127.0.0.1:1/gyre",
    "s3_endpoint": None,
    "s3_bucket": "gyre",
    "s3_access_key": "key",
    "s3_secret_key": "secret",
    "s3_region": "us-east-1",
}
START_RUN = {
    "command": "start_run", "run": "a", "services": SERVICES, "revision": 2, "harness_slots": 4,
    "evaluate_slots": 2, "num_gateways": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "document"),
    [
        (ReadStatus(), {"command": "status"}),
        (StartServices(), {"command": "start_services"}),
        (
            StartRun(
                run="a",
                services=Services(**SERVICES),
                revision=2,
                harness_slots=4,
                evaluate_slots=2,
                num_gateways=3,
            ),
            START_RUN,
        ),
        (StopRun(run="a"), {"command": "stop_run", "run": "a"}),
        (StopEverything(), {"command": "stop"}),
    ],
    ids=lambda value: value.command if not isinstance(value, dict) else "",
)
def test_commands_keep_their_json_so_that_keepers_of_other_versions_understand(
    command: KeeperCommand, document: dict[str, Any]
) -> None:
    assert json.loads(command.model_dump_json()) == document
    assert COMMANDS.validate_python(document) == command


def test_the_number_of_gateways_may_be_missing_and_no_other_key() -> None:
    document = {key: value for key, value in START_RUN.items() if key != "num_gateways"}
    command = COMMANDS.validate_python(document)
    assert isinstance(command, StartRun)
    assert command.num_gateways == 1
    for key in document:
        with pytest.raises(ValidationError):
            COMMANDS.validate_python({name: value for name, value in document.items() if name != key})


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateDir]:
    """The state directory of a keeper with nothing to keep."""
    state = StateDir(tmp_path_factory.mktemp("keeper"))
    state.make()
    # A process of its own: a keeper that stops ends all children of its process.
    command = [sys.executable, "-m", "app.stack.keeper", "--state-dir", str(state.root)]
    subprocess.run(command, check=True, timeout=60, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while stack.status(state.root) is None:
        assert time.monotonic() < deadline, "no keeper answers"
        time.sleep(0.05)
    yield state
    ask(state.control_socket, StopEverything())


def send(path: Path, text: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(text.encode())
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").readline()


@pytest.mark.parametrize(
    ("request_text", "reason"),
    [
        ('{"command": "dance"}', "dance"),
        ('{"run": "a"}', "command"),
        ("[]", "command"),
        ('{"command": "stop_run"}', "missing key 'stop_run.run'"),
        ('{"command": "stop_run", "run": "a", "now": 1}', "unknown key 'stop_run.now'"),
        (
            json.dumps(START_RUN | {"services": SERVICES | {"postgres_dsn": "mysql://hidden"}}),
            "postgres_dsn: it must",
        ),
    ],
)
def test_a_request_that_is_not_understood_is_answered_in_one_sentence(
    keeper: StateDir, request_text: str, reason: str
) -> None:
    error = json.loads(send(keeper.control_socket, request_text + "\n"))["error"]
    assert reason in error
    assert "\n" not in error
    assert "hidden" not in error
    assert ask(keeper.control_socket, ReadStatus())["processes"] == []


def test_a_client_that_sends_half_a_line_gets_no_answer_and_does_no_harm(keeper: StateDir) -> None:
    for text in ("", '{"command": "sta'):
        assert send(keeper.control_socket, text) == b""
    assert ask(keeper.control_socket, ReadStatus())["processes"] == []


def test_a_damaged_record_refuses_the_command_in_one_sentence(keeper: StateDir) -> None:
    folder = keeper.run("a")
    folder.mkdir()
    (folder / "processes.json").write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        ask(keeper.control_socket, StopRun(run="a"))
