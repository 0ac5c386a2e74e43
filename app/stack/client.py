"""Entry points for other rooms: bring the services and the processes of a run up and down."""

import os
import subprocess
import sys
import time
from pathlib import Path

import gyre
from app.stack.control import (
    KeeperCommand,
    ProcessStatus,
    ReadStatus,
    StartRun,
    StartServices,
    Status,
    StopEverything,
    StopRun,
    ask,
)
from app.stack.files import StateDir
from app.stack.ledger import Ledger
from app.stack.orphans import MARK
from app.stack.run_record import read_run, read_runs
from app.stack.services_record import read_services_record
from gyre.contracts.errors import BadInput, GyreError
from gyre.host.processes import identify, is_alive
from gyre.settings.services import Services

KEEPER_S = 30.0
"""Time for the keeper to listen, which is one start of Python."""
SERVICES_S = 300.0
"""Time for initdb, three servers and the migrations on a busy machine."""
STOP_S = 120.0
"""Time to stop processes, each of which has a grace period; also to start those of a run."""


def ensure_up(state_dir: Path) -> Services:
    """Start what is not running; return when all services serve and the database is migrated.

    A repeated call is cheap. Raises BadInput with one sentence when a service cannot be started.
    """
    state = _ensure_keeper(state_dir)
    try:
        _command(state, StartServices(), timeout_s=SERVICES_S)
    except BadInput as error:
        found = status(state_dir)
        running = sorted(each.name for each in found.processes if each.pid is not None) if found else []
        hint = f" (running: {', '.join(running)}; `gyre down` stops that)" if running else ""
        raise BadInput(f"{error}{hint}") from None
    record = read_services_record(state)
    if record is None:
        raise GyreError(f"{state.services} disappeared while the services started")
    return record.services()


def down(state_dir: Path) -> bool:
    """Stop the runs' processes and the services, leaving no process and losing no data.

    Returns False if nothing was running.
    """
    state = StateDir.at(state_dir)
    if not state.processes.exists() or not _is_anything_up(state):
        return False
    # A killed keeper left processes behind, and only a keeper can end them.
    _ensure_keeper(state_dir)
    found = status(state_dir)
    keeper = identify(found.keeper_pid) if found else None
    _command(state, StopEverything(), timeout_s=STOP_S)
    deadline = time.monotonic() + KEEPER_S
    while keeper is not None and is_alive(keeper) and time.monotonic() < deadline:
        time.sleep(0.02)
    return True


def status(state_dir: Path) -> Status | None:
    """Return the keeper's status, or None when no keeper runs."""
    state = StateDir.at(state_dir)
    if not state.root.exists():
        return None
    try:
        return Status.model_validate(ask(state.control_socket, ReadStatus()))
    except OSError:
        return None


def unkept(state_dir: Path) -> list[ProcessStatus]:
    """Return the processes that a killed keeper left and that no keeper has adopted, by name."""
    state, found = StateDir.at(state_dir), status(state_dir)
    kept = {process.name for process in found.processes} if found else set[str]()
    lost: list[ProcessStatus] = []
    for name, process in sorted(Ledger(state.processes).living().items()):
        if name in kept:
            continue
        run, _, short_name = name.rpartition("/")
        folder = state.run(run) if run else state.logs
        lost.append(
            ProcessStatus(
                name=name,
                state="not kept",
                pid=process.pid,
                ports=[],
                restarts=0,
                detail="its keeper is gone",
                log=str(folder / f"{short_name}.log"),
            )
        )
    return lost


def is_down(state_dir: Path, services: Services) -> bool:
    """Return whether ``services`` are the embedded ones and `gyre down` has stopped them."""
    state = StateDir.at(state_dir)
    record = read_services_record(state)
    return record is not None and record.services() == services and not _is_anything_up(state)


def _is_anything_up(state: StateDir) -> bool:
    return status(state.root) is not None or Ledger(state.processes).any_alive()


def services_of(state_dir: Path, run: str | None = None) -> Services:
    """Return the addresses of the services that ``run`` uses, or of the embedded ones.

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
    """Return every set of services that runs of this state directory use, the embedded one first."""
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

    A repeated call restarts only what was started with other values or from another revision of the
    configuration. Raises BadInput when another process has taken a port of the run.
    """
    command = StartRun(
        run=run,
        services=services,
        revision=revision,
        harness_slots=harness_slots,
        evaluate_slots=evaluate_slots,
        num_gateways=num_gateways,
    )
    _command(_ensure_keeper(state_dir), command, timeout_s=STOP_S)


def stop_run(state_dir: Path, run: str) -> None:
    """End the processes of a run, harnesses included. Does nothing if no such process exists."""
    state = StateDir.at(state_dir)
    if _is_anything_up(state):
        _ensure_keeper(state_dir)  # a killed keeper left processes behind, and only a keeper can end them
        _command(state, StopRun(run=run), timeout_s=STOP_S)


def _command(state: StateDir, command: KeeperCommand, *, timeout_s: float) -> None:
    try:
        ask(state.control_socket, command, timeout_s=timeout_s)
    except OSError as error:
        raise GyreError(
            f"the keeper did not answer `{command.command}` ({error}): see {state.logs}/keeper.log"
        ) from error


def _ensure_keeper(state_dir: Path) -> StateDir:
    """Start a keeper unless one answers. Raises GyreError if none can be started."""
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
    """Return when the new keeper is in the background, or has found that another one is there."""
    source = str(Path(gyre.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    log_path = state.logs / "keeper.log"
    try:
        log = log_path.open("ab")
    except OSError as error:
        raise BadInput(f"{log_path} cannot be written: {error.strerror}") from None
    with log:
        result = subprocess.run(
            # -P: a package /app of this machine must not shadow ours.
            [sys.executable, "-P", "-m", "app.stack.keeper", "--state-dir", str(state.root)],
            cwd="/",  # a daemon must not keep the caller's folder in use
            env={**os.environ, "PYTHONPATH": path, MARK: str(state.root)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=KEEPER_S,
        )
    if result.returncode != 0:
        raise GyreError(f"the keeper could not be started: see {log_path}")
