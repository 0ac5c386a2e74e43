"""What other rooms call: bring the services and the processes of a run up and down."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

import gyre
from app.stack.control import ProcessStatus, Status, ask
from app.stack.files import StateDir
from app.stack.ledger import Ledger
from app.stack.orphans import MARK
from app.stack.run_record import read_run, read_runs
from app.stack.services_record import read_services_record
from gyre.contracts.errors import BadInput, GyreError
from gyre.host.processes import identify, is_alive
from gyre.settings.services import Services

KEEPER_S = 30.0
"""For the keeper to listen; it is one Python start."""
SERVICES_S = 300.0
"""For initdb, three servers and the migrations on a machine that is busy."""


def ensure_up(state_dir: Path) -> Services:
    """Start what is not running; return when all services serve and the database is migrated.

    Calling it again is cheap. Raises BadInput with one sentence when a service cannot be started.
    """
    state = _ensure_keeper(state_dir)
    try:
        _ask(state, "start_services", timeout_s=SERVICES_S)
    except BadInput as error:
        raise BadInput(f"{error}{_still_up(state_dir)}") from None
    record = read_services_record(state)
    if record is None:
        raise GyreError(f"{state.services} went away while the services started")
    return record.services()


def _still_up(state_dir: Path) -> str:
    """What a start that failed leaves running, in brackets; empty if that is nothing."""
    found = status(state_dir)
    names = [each.name for each in found.processes if each.pid is not None] if found else []
    return f" (running: {', '.join(sorted(names))}; `gyre down` stops that)" if names else ""


def down(state_dir: Path) -> bool:
    """Stop the runs' processes and the services; no process is left and no data is lost.

    False if nothing was running.
    """
    state = StateDir.at(state_dir)
    if not state.processes.exists() or not _is_anything_up(state):
        return False
    _ensure_keeper(state_dir)  # the keeper may have been killed, and its processes need one to end them
    told = status(state_dir)
    keeper = identify(told.keeper_pid) if told else None
    _ask(state, "stop", timeout_s=120.0)
    deadline = time.monotonic() + KEEPER_S
    while keeper is not None and is_alive(keeper) and time.monotonic() < deadline:
        time.sleep(0.02)
    return True


def status(state_dir: Path) -> Status | None:
    """What the keeper says; None when none runs."""
    state = StateDir.at(state_dir)
    if not state.root.exists():
        return None
    try:
        return Status.model_validate(ask(state.control_socket, "status"))
    except OSError:
        return None


def unkept(state_dir: Path) -> list[ProcessStatus]:
    """Processes that a killed keeper left and no keeper has taken over, by name."""
    state, found = StateDir.at(state_dir), status(state_dir)
    kept = {process.name for process in found.processes} if found else set[str]()
    return [
        ProcessStatus(
            name=name,
            state="not kept",
            pid=process.pid,
            ports=[],
            restarts=0,
            detail="its keeper is gone",
            log=str(_log_of(state, name)),
        )
        for name, process in sorted(Ledger(state.processes).living().items())
        if name not in kept
    ]


def _log_of(state: StateDir, name: str) -> Path:
    run, _, process = name.rpartition("/")
    return (state.run(run) if run else state.logs) / f"{process}.log"


def is_down(state_dir: Path, services: Services) -> bool:
    """Whether ``services`` are the embedded ones and `gyre down` has stopped them."""
    state = StateDir.at(state_dir)
    record = read_services_record(state)
    return record is not None and record.services() == services and not _is_anything_up(state)


def _is_anything_up(state: StateDir) -> bool:
    return status(state.root) is not None or Ledger(state.processes).any_alive()


def services_of(state_dir: Path, run: str | None = None) -> Services:
    """Addresses of the services that ``run`` uses, or of the embedded ones.

    Raises BadInput when nothing was ever started here.
    """
    state = StateDir.at(state_dir)
    started = read_run(state, run) if run else None
    if started is not None:
        return started.services
    record = read_services_record(state)
    if record is None:
        raise BadInput(
            f"no services in {state.root}: run `gyre up` first, or change to the folder of the run"
        )
    return record.services()


def all_services(state_dir: Path) -> list[Services]:
    """Every set of services that runs of this state directory use, the embedded one first."""
    state = StateDir.at(state_dir)
    record = read_services_record(state)
    found = [record.services()] if record else []
    for run in read_runs(state):
        if run.services not in found:
            found.append(run.services)
    return found


def start_run(
    state_dir: Path,
    run: str,
    services: Services,
    *,
    revision: int,
    harness_slots: int,
    evaluate_slots: int,
    num_gateways: int = 1,
) -> None:
    """Have the keeper run the gateways, the worker and the cell of a run.

    Again: restarts what was started with other values or from another revision of the configuration, and
    nothing else. Raises BadInput when another process has taken a port of the run.
    """
    state = _ensure_keeper(state_dir)
    _ask(
        state,
        "start_run",
        timeout_s=120.0,
        run=run,
        services=services.model_dump(mode="json"),
        revision=revision,
        harness_slots=harness_slots,
        evaluate_slots=evaluate_slots,
        num_gateways=num_gateways,
    )


def stop_run(state_dir: Path, run: str) -> None:
    """End the processes of a run, harnesses included. Nothing runs, or no such run: nothing to do."""
    state = StateDir.at(state_dir)
    if _is_anything_up(state):
        _ensure_keeper(state_dir)  # the keeper may have been killed, and its processes need one to end them
        _ask(state, "stop_run", timeout_s=120.0, run=run)


def _ask(state: StateDir, command: str, *, timeout_s: float, **arguments: object) -> None:
    try:
        ask(state.control_socket, command, timeout_s=timeout_s, **arguments)
    except OSError as error:
        raise GyreError(
            f"the keeper did not answer `{command}` ({error}): see {state.logs}/keeper.log"
        ) from error


def _ensure_keeper(state_dir: Path) -> StateDir:
    state = StateDir.at(state_dir)
    if status(state_dir) is not None:
        return state
    state.make()
    _spawn_keeper(state)
    deadline = time.monotonic() + KEEPER_S
    while status(state_dir) is None:
        if time.monotonic() > deadline:
            raise GyreError(f"the keeper could not be started: see {state.logs}/keeper.log")
        time.sleep(0.05)
    return state


def _spawn_keeper(state: StateDir) -> None:
    """Return when it has gone into the background, or has found that another keeper is there."""
    source = str(Path(gyre.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    with _open_log(state) as log:
        result = subprocess.run(
            [sys.executable, "-m", "app.stack.keeper", "--state-dir", str(state.root)],
            cwd="/",
            env={**os.environ, "PYTHONPATH": path, MARK: str(state.root)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=KEEPER_S,
        )
    if result.returncode != 0:
        raise GyreError(f"the keeper could not be started: see {state.logs}/keeper.log")


def _open_log(state: StateDir) -> BinaryIO:
    path = state.logs / "keeper.log"
    try:
        return path.open("ab")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None
