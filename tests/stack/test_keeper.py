"""Kill -9 of each service and of the keeper itself; ports in use; down leaves nothing behind."""

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from app import stack
from app.stack.control import ProcessStatus
from app.stack.files import StateDir
from app.stack.ledger import Entry, Ledger
from app.stack.orphans import MARK
from gyre.contracts.errors import BadInput
from gyre.host.processes import identify

Look = Callable[[str], ProcessStatus]
Eventually = Callable[[Callable[[], bool]], None]


def write_note(dsn: str, text: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("DROP TABLE IF EXISTS note")
        connection.execute("CREATE TABLE note (text text)")
        connection.execute("INSERT INTO note VALUES (%s)", [text])


def read_notes(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("SELECT text FROM note ORDER BY text")]


def processes_of(state_dir: Path) -> set[int]:
    """Return the pids that carry the state directory's mark, zombies excluded."""
    mark = f"{MARK}={state_dir}".encode()
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0") and identify(int(folder.name)):
                found.add(int(folder.name))
        except OSError:
            continue
    return found


def test_a_killed_service_comes_back_with_its_port_and_data(
    state_dir: Path, process: Look, eventually: Eventually
) -> None:
    services = stack.ensure_up(state_dir)
    write_note(services.postgres_dsn, "before")
    for name in ("postgres", "temporal", "s3"):
        killed = process(name)
        assert killed.restarts == 0
        assert killed.pid is not None
        os.kill(killed.pid, signal.SIGKILL)
        eventually(lambda name=name, pid=killed.pid: process(name).state == "up" and process(name).pid != pid)
        assert process(name).ports == killed.ports
        assert process(name).restarts == 1
    assert stack.ensure_up(state_dir) == services
    assert read_notes(services.postgres_dsn) == ["before"]


def test_a_second_up_changes_nothing(state_dir: Path) -> None:
    services = stack.ensure_up(state_dir)
    before = stack.status(state_dir)
    assert stack.ensure_up(state_dir) == services
    assert stack.status(state_dir) == before


def test_down_leaves_no_process_and_loses_nothing(state_dir: Path) -> None:
    services = stack.ensure_up(state_dir)
    write_note(services.postgres_dsn, "kept")
    assert len(processes_of(state_dir)) >= 4
    assert stack.down(state_dir)
    assert processes_of(state_dir) == set()
    assert not stack.down(state_dir)
    assert stack.ensure_up(state_dir) == services
    assert read_notes(services.postgres_dsn) == ["kept"]


def test_a_port_taken_by_another_process_is_one_sentence(state_dir: Path) -> None:
    services = stack.ensure_up(state_dir)
    stack.down(state_dir)
    port = int(services.temporal_address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(
            BadInput, match=rf"port {port} .* temporal .* another process.*running: postgres, s3; `gyre down`"
        ):
            stack.ensure_up(state_dir)
        status = stack.status(state_dir)
        assert status is not None
    assert stack.ensure_up(state_dir) == services


def test_a_new_keeper_adopts_what_a_killed_one_left(state_dir: Path) -> None:
    services = stack.ensure_up(state_dir)
    before = stack.status(state_dir)
    assert before is not None
    os.kill(before.keeper_pid, signal.SIGKILL)
    assert stack.ensure_up(state_dir) == services
    after = stack.status(state_dir)
    assert after is not None
    assert after.keeper_pid != before.keeper_pid
    assert {p.name: p.pid for p in after.processes} == {p.name: p.pid for p in before.processes}


def test_down_ends_what_a_killed_keeper_left(state_dir: Path) -> None:
    services = stack.ensure_up(state_dir)
    write_note(services.postgres_dsn, "kept")
    before = stack.status(state_dir)
    assert before is not None
    os.kill(before.keeper_pid, signal.SIGKILL)
    assert stack.down(state_dir)
    assert processes_of(state_dir) == set()
    assert not Ledger(StateDir(state_dir).processes).any_alive()
    stack.ensure_up(state_dir)
    assert read_notes(services.postgres_dsn) == ["kept"]


def test_a_reused_pid_is_not_adopted(state_dir: Path, process: Look) -> None:
    stack.ensure_up(state_dir)
    stack.down(state_dir)
    ledger = Ledger(StateDir(state_dir).processes)
    mine = identify(os.getpid())
    assert mine is not None
    # An entry for an earlier process with this pid: killing or adopting it would hit the test itself.
    stale = mine._replace(start=f"{mine.start}0")
    ledger.put("postgres", Entry(process=stale, fingerprint="x"))
    stack.ensure_up(state_dir)
    assert process("postgres").pid != os.getpid()


def test_credentials_are_private(state_dir: Path) -> None:
    services = stack.ensure_up(state_dir)
    assert StateDir(state_dir).services.stat().st_mode & 0o777 == 0o600
    for secret in (services.s3_secret_key, services.postgres_dsn.split(":")[2].split("@")[0]):
        command_lines = b"".join(
            (Path("/proc") / str(pid) / "cmdline").read_bytes() for pid in processes_of(state_dir)
        )
        assert secret.encode() not in command_lines
