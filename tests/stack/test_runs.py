"""The processes of a run: boot files, ports, and a stop that leaves none of them, harnesses included."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from app import stack
from app.stack.files import StateDir
from app.stack.orphans import MARK, RUN_MARK
from app.stack.run_record import RunRecord, ensure_run, read_run
from app.stack.run_specs import run_specs
from gyre.contracts.boot import CellBoot, GatewayBoot, WorkerBoot, gateway_of
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import AttemptId
from gyre.settings import Services

BOOTS = {"gateway": GatewayBoot, "worker": WorkerBoot, "cell-0": CellBoot}
ELSEWHERE = Services(
    temporal_address="127.0.0.1:1",
    postgres_dsn="postgresql://nobody@127.0.0.1:1/gyre",
    s3_endpoint="http://127.0.0.1:1",
    s3_access_key="key",
    s3_secret_key="secret",
)


def test_boot_files_are_private_valid_and_agree(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.make()
    record = ensure_run(state, "r", ELSEWHERE, 0, 4, 2)
    run_specs(state, record)
    boots = {}
    for name, model in BOOTS.items():
        file = state.run("r") / f"{name}.boot.json"
        assert file.stat().st_mode & 0o777 == 0o600
        boots[name] = model.model_validate_json(file.read_text())
    (address,) = boots["worker"].gateways
    assert address.url == f"http://127.0.0.1:{boots['gateway'].port}"
    assert address.socket == boots["gateway"].socket
    assert boots["cell-0"].cell == "run/r/cell/0"


def test_a_run_keeps_its_ports_and_shares_none_with_another_run(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.make()
    first, second = (ensure_run(state, name, ELSEWHERE, 0, 4, 2) for name in ("a", "b"))
    again = ensure_run(state, "a", ELSEWHERE, 0, 8, 2)
    assert again.ports() == first.ports()
    assert len({*first.ports().values(), *second.ports().values()}) == 4
    assert changed(state, first, again) == ["a/worker"], "more slots must replace only the worker"


def test_a_run_may_get_more_gateways_and_never_fewer(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.make()
    one, three, still = (
        ensure_run(state, "a", ELSEWHERE, 0, 4, 2, num_gateways=count) for count in (1, 3, 1)
    )
    assert three.gateway_ports[:1] == one.gateway_ports
    assert still.gateway_ports == three.gateway_ports
    assert list(still.ports()) == ["a/gateway", "a/gateway-1", "a/gateway-2", "a/cell-0"]
    assert [spec.name for spec in run_specs(state, still)] == [
        "a/cell-0", "a/gateway", "a/gateway-1", "a/gateway-2", "a/worker",
    ]  # fmt: skip
    worker = WorkerBoot.model_validate_json((state.run("a") / "worker.boot.json").read_text())
    attempts = [
        [AttemptId(f"run/a/group/{g}/rollout/{i}/attempt/{n}") for i in range(4) for n in (1, 2)]
        for g in range(40)
    ]
    served = [{gateway_of(attempt, worker.gateways).url for attempt in group} for group in attempts]
    assert {len(urls) for urls in served} == {1}, "one process must serve a group"
    assert len(set.union(*served)) == 3, "all processes must serve groups"


def changed(state: StateDir, old: RunRecord, new: RunRecord) -> list[str]:
    """Return the processes of a run that a new record restarts."""
    pairs = zip(run_specs(state, old), run_specs(state, new), strict=True)
    return [after.name for before, after in pairs if before.fingerprint != after.fingerprint]


def test_a_new_revision_of_the_configuration_replaces_every_process(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.make()
    old, new = (ensure_run(state, "a", ELSEWHERE, revision, 4, 2) for revision in (0, 1))
    assert changed(state, old, new) == ["a/cell-0", "a/gateway", "a/worker"]
    assert changed(state, new, new) == []


def test_a_socket_path_that_is_too_long_moves(tmp_path: Path) -> None:
    deep = StateDir(tmp_path / ("x" * 60) / ("y" * 60))
    assert len(str(deep.control_socket)) < 100
    assert deep.control_socket.parent.stat().st_mode & 0o777 == 0o700
    assert StateDir(Path("/a")).control_socket == Path("/a/keeper.sock")


def test_external_services_need_no_embedded_ones_and_stop_leaves_nothing(
    state_dir: Path, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    stack.start_run(state_dir, "lost", ELSEWHERE, revision=0, harness_slots=1, evaluate_slots=1)
    stack.start_run(state_dir, "lost", ELSEWHERE, revision=0, harness_slots=1, evaluate_slots=1)
    status = stack.status(state_dir)
    assert status is not None
    assert sorted(p.name for p in status.processes) == ["lost/cell-0", "lost/gateway", "lost/worker"]
    assert not StateDir(state_dir).services.exists()
    assert stack.services_of(state_dir, "lost") == ELSEWHERE

    # Like a harness: in its own session and reparented, so that no parent could end it.
    folder = StateDir(state_dir).run("lost")
    code = "import os, sys, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
    subprocess.run(
        ["/bin/sh", "-c", '"$0" -c "$1" > "$2" &', sys.executable, code, str(folder / "pid")],
        env={RUN_MARK: "lost", MARK: str(state_dir)},
        check=True,
    )
    eventually(lambda: (folder / "pid").exists() and (folder / "pid").read_text().endswith("\n"))
    harness = int((folder / "pid").read_text())
    stack.stop_run(state_dir, "lost")
    eventually(lambda: not psutil.pid_exists(harness) or psutil.Process(harness).status() == "zombie")
    status = stack.status(state_dir)
    assert status is not None
    assert status.processes == []
    record = read_run(StateDir(state_dir), "lost")
    assert record is not None
    assert not record.wanted
    assert json.loads(StateDir(state_dir).processes.read_text()) == {}


@pytest.mark.parametrize(("number", "owner"), [(0, "taken/gateway"), (1, "taken/cell-0")])
def test_a_taken_port_of_a_resumed_run_is_reported_before_anything_starts(
    state_dir: Path, number: int, owner: str
) -> None:
    def start() -> None:
        stack.start_run(state_dir, "taken", ELSEWHERE, revision=0, harness_slots=1, evaluate_slots=1)

    start()
    stack.stop_run(state_dir, "taken")
    record = read_run(StateDir(state_dir), "taken")
    assert record is not None
    port = (record.gateway_ports[0], record.engine_port)[number]
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(BadInput, match=rf"port {port} .* {owner} .* another process"):
            start()
        status = stack.status(state_dir)
        assert status is not None
        assert status.processes == []
        assert read_run(StateDir(state_dir), "taken") == record
    start()
    stack.stop_run(state_dir, "taken")
