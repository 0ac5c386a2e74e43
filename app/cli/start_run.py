"""Starting a run: check everything first, then rows, then processes, then the workflow.

Each step can be repeated, so a launch that was interrupted is finished by ``gyre run --resume``.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from app import stack
from app.cli import external, workflow_client
from db import run_state, runs
from db.session import connect, transaction
from gyre.contracts.errors import BadInput, GyreError
from gyre.contracts.ids import RunId
from gyre.contracts.lifecycle import RunStatus
from gyre.settings import state
from gyre.settings.models import check_model
from gyre.settings.runfile import RunFile, frozen_differences, load_run_file
from gyre.settings.services import Services
from gyre.settings.tasks import TaskFolder, load_tasks
from sandbox.adapters import check_harness

EVALUATE_SLOTS = 4
"""Evaluators are short; more of them than cores would only slow each other down on a laptop."""
LOOK_S = 1.0
"""Between two looks at Postgres."""
CHECK_S = 60.0
"""Between two looks whether the run's workflow is still open."""
AWAY_S = 60.0
"""For a database that was killed to be started again by the keeper."""
CLOSE_S = 15.0
"""For the workflows of a run that has ended to close by themselves."""


@dataclass(frozen=True)
class CheckedRun:
    """A run file whose model and tasks were found good."""

    document: RunFile
    train: Sequence[TaskFolder]
    heldout: Sequence[TaskFolder]

    @property
    def name(self) -> RunId:
        return RunId(self.document.run.name)


def check(path: Path) -> CheckedRun:
    """Read and validate everything that a run needs; makes nothing. Raises BadInput with one sentence."""
    document = load_run_file(path)
    check_model(document.model.path, document.model.context_tokens, document.cells.tensor_parallel)
    if document.cells.device == "cuda":
        _check_gpu(document.model.dtype)
    check_harness(document.harness.name, document.harness.options)
    train = load_tasks(document.tasks.train)
    heldout = load_tasks(document.tasks.heldout) if document.tasks.heldout else []
    if shared := {task.name for task in train} & {task.name for task in heldout}:
        raise BadInput(f"task '{min(shared)}' is in tasks.train and in tasks.heldout: rename one of them")
    trained = {task.sha256: task.name for task in train}
    for task in heldout:
        if same := trained.get(task.sha256):
            raise BadInput(f"task '{task.name}' of tasks.heldout is '{same}' of tasks.train: remove one")
    return CheckedRun(document, train, heldout)


def _check_gpu(dtype: str) -> None:
    # Only who asks for a GPU waits the seconds that torch takes to load.
    import torch

    if not torch.cuda.is_available():
        raise BadInput("cells.device = 'cuda': torch finds no GPU on this machine (allowed here: cpu)")
    if dtype == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise BadInput("model.dtype = 'bfloat16': the GPU has no bfloat16 (allowed here: float32)")


def launch(run: CheckedRun, state_dir: Path, *, resume: bool = False) -> Services:
    """Start the run, or take it up again; returns when its workflow runs. Raises BadInput otherwise."""
    services = run.document.services
    if services is None:
        services = stack.ensure_up(state_dir)
    else:
        external.prepare(services)
    end = _end_of(services, run.name)
    revision = record(run, services, resume=resume)
    try:
        stack.start_run(
            state_dir,
            run.name,
            services,
            revision=revision,
            harness_slots=run.document.schedule.max_concurrent * run.document.cells.count,
            evaluate_slots=EVALUATE_SLOTS,
            num_gateways=run.document.gateway.processes,
        )
    except GyreError:
        if end is not None:  # nothing would move a row that says `running`
            _end_again(services, run.name, end)
        raise
    asyncio.run(workflow_client.start(services, run.name))
    return services


def _end_of(services: Services, run: RunId) -> tuple[RunStatus, str | None] | None:
    """Terminal status and failure of a run that has ended; None for any other."""
    with _transaction(services) as session:
        row = runs.find(session, run)
        return (RunStatus(row.status), row.failure) if row and row.status in run_state.TERMINAL else None


def _end_again(services: Services, run: RunId, end: tuple[RunStatus, str | None]) -> None:
    with _transaction(services) as session:
        run_state.advance_status(session, run, end[0], failure=end[1])


@contextmanager
def _transaction(services: Services) -> Generator[Session]:
    engine = connect(services.postgres_dsn, pool_size=1)
    try:
        with transaction(engine) as session:
            yield session
    finally:
        engine.dispose()


def record(run: CheckedRun, services: Services, *, resume: bool) -> int:
    """Write the rows of the run; the revision of its configuration that is in force now.

    Raises BadInput where the name is taken, or is not there to resume, or a frozen key changed.
    """
    resolved = run.document.resolved()
    with _transaction(services) as session:
        made = runs.create(session, run.name)
        if made and resume:
            raise BadInput(f"no run '{run.name}' to resume: leave --resume out to start it")
        if not made:
            _require_resumable(runs.find(session, run.name), resume)
        latest = runs.latest_config(session, run.name)
        if latest is not None and (changed := frozen_differences(latest.resolved, resolved)):
            raise BadInput(f"run '{run.name}' cannot be resumed with other values: {'; '.join(changed)}")
        revision = runs.revise_config(session, run.name, resolved, run.document.fingerprint())
        runs.add_tasks(session, run.name, _task_rows(run))
        if not made:
            run_state.advance_status(session, run.name, RunStatus.RUNNING)
        return revision


def _require_resumable(row: runs.RunRow | None, resume: bool) -> None:
    assert row is not None
    if not resume:
        raise BadInput(f"run '{row.id}' exists already: choose another run.name, or add --resume")
    if row.status == RunStatus.FINISHED:
        raise BadInput(f"run '{row.id}' has finished: there is nothing to resume")


def _task_rows(run: CheckedRun) -> list[runs.NewTask]:
    return [
        runs.NewTask(name=task.name, split=split, path=str(task.path), sha256=task.sha256)
        for split, tasks in (("train", run.train), ("heldout", run.heldout))
        for task in tasks
    ]


def follow(
    services: Services,
    run: RunId,
    look: Callable[[], RunStatus],
    *,
    look_s: float = LOOK_S,
    check_s: float = CHECK_S,
    away_s: float = AWAY_S,
) -> RunStatus:
    """Call ``look`` again and again until it says that the run has ended; the status it ended with.

    Raises GyreError when the run's workflow is found closed twice in a row and the run has not ended: a
    workflow that was terminated, say, says nothing to Postgres. Once is not enough, because `gyre stop`
    closes the workflow a few seconds before it marks the run. Raises it too when the services were stopped,
    or when Postgres stays away for ``away_s``.
    """
    checked_at, was_closed = time.monotonic(), False
    look = _patient(services, run, look, away_s)
    while (status := look()) not in run_state.TERMINAL:
        if time.monotonic() - checked_at >= check_s:
            is_closed = _is_closed(services, run)
            if is_closed and was_closed:
                raise GyreError(
                    f"run '{run}' is {status} and its workflow has closed, so nothing moves it any more: "
                    "`gyre run FILE --resume` takes it up"
                )
            checked_at, was_closed = time.monotonic(), is_closed
        time.sleep(look_s)
    return status


def _patient(
    services: Services, run: RunId, look: Callable[[], RunStatus], away_s: float
) -> Callable[[], RunStatus]:
    """``look``, which while Postgres is away says again what it said before."""
    seen, seen_at = RunStatus.CREATED, time.monotonic()

    def look_again() -> RunStatus:
        nonlocal seen, seen_at
        try:
            seen, seen_at = look(), time.monotonic()
        except BadInput as error:
            if stack.is_down(state.state_dir(), services):
                raise GyreError(f"the services were stopped; run {run} goes on after `gyre up`") from error
            if time.monotonic() - seen_at >= away_s:
                raise GyreError(f"Postgres stayed away for {away_s:.0f} s: {error}") from error
        return seen

    return look_again


def _is_closed(services: Services, run: RunId) -> bool:
    try:
        return asyncio.run(workflow_client.is_closed(services, run))
    except BadInput:
        return False  # the server is away for a while; the keeper brings it back


def settle(state_dir: Path, run: RunId, services: Services, status: RunStatus) -> None:
    """After the run's row is terminal: let its workflows close, then end its processes.

    A run that failed leaves groups and rollouts in progress: they are cancelled.
    """
    if status is RunStatus.FAILED:
        asyncio.run(workflow_client.cancel(services, run, limit_s=CLOSE_S))
    else:
        asyncio.run(workflow_client.wait_closed(services, run, limit_s=CLOSE_S))
    stack.stop_run(state_dir, run)
