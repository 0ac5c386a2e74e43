"""Start a run: check everything first, then write rows, then start processes, then the workflow.

Each step can be repeated, so ``gyre run --resume`` completes a start that was interrupted.
"""

import asyncio
from collections.abc import Generator, Sequence
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
from gyre.settings.models import check_model
from gyre.settings.runfile import RunFile, frozen_differences, load_run_file
from gyre.settings.services import Services
from gyre.settings.task_folders import TaskFolder, load_tasks
from sandbox.adapters import check_harness

EVALUATE_SLOTS = 4
"""Evaluators are short; on a laptop, more of them than cores would only slow each other down."""


@dataclass(frozen=True)
class CheckedRun:
    """A run file whose model, harness and tasks were checked."""

    document: RunFile
    train: Sequence[TaskFolder]
    heldout: Sequence[TaskFolder]

    @property
    def name(self) -> RunId:
        return RunId(self.document.run.name)


def check(path: Path) -> CheckedRun:
    """Read and validate everything that a run needs, without side effects. Raises BadInput."""
    document = load_run_file(path)
    check_model(document.model.path, document.model.context_tokens, document.cells.tensor_parallel)
    if document.cells.device == "cuda":
        _check_gpu(document.model.dtype)
    check_harness(document.harness.name, document.harness.options)
    train = load_tasks(document.tasks.train)
    heldout = load_tasks(document.tasks.heldout) if document.tasks.heldout else []
    if shared := {task.name for task in train} & {task.name for task in heldout}:
        raise BadInput(f"task '{min(shared)}' is in both tasks.train and tasks.heldout: rename one of them")
    trained = {task.sha256: task.name for task in train}
    for task in heldout:
        if same := trained.get(task.sha256):
            raise BadInput(
                f"task '{task.name}' in tasks.heldout equals '{same}' in tasks.train: remove one of them"
            )
    return CheckedRun(document, train, heldout)


def _check_gpu(dtype: str) -> None:
    # Imported here because torch takes seconds to load, and only a run on a GPU needs it.
    import torch

    if not torch.cuda.is_available():
        raise BadInput("cells.device = 'cuda': torch finds no GPU on this machine (allowed here: cpu)")
    if dtype == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise BadInput("model.dtype = 'bfloat16': this GPU has no bfloat16 (allowed here: float32)")


def launch(run: CheckedRun, state_dir: Path, *, resume: bool = False) -> Services:
    """Start or resume the run; return once its workflow runs. Raises BadInput when it cannot start."""
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
        if end is not None:  # restore it: no process would ever change a row that says `running`
            with _transaction(services) as session:
                run_state.advance_status(session, run.name, end[0], failure=end[1])
        raise
    asyncio.run(workflow_client.start(services, run.name))
    return services


def _end_of(services: Services, run: RunId) -> tuple[RunStatus, str | None] | None:
    """Return the terminal status and the failure of a run that has ended; None for any other run."""
    with _transaction(services) as session:
        row = runs.find(session, run)
        return (RunStatus(row.status), row.failure) if row and row.status in run_state.TERMINAL else None


@contextmanager
def _transaction(services: Services) -> Generator[Session]:
    database = connect(services.postgres_dsn, pool_size=1)
    try:
        with transaction(database) as session:
            yield session
    finally:
        database.dispose()


def record(run: CheckedRun, services: Services, *, resume: bool) -> int:
    """Write the rows of the run; return the revision of its configuration that is now in force.

    Raises BadInput when the name is taken, when there is no such run to resume, or when a frozen key changed.
    """
    name, resolved = run.name, run.document.resolved()
    with _transaction(services) as session:
        is_new = runs.create(session, name)
        if is_new and resume:
            raise BadInput(f"no run '{name}' to resume: leave out --resume to start it")
        if not is_new:
            row = runs.find(session, name)
            assert row is not None
            if not resume:
                raise BadInput(f"run '{name}' exists already: choose another run.name, or add --resume")
            if row.status == RunStatus.FINISHED:
                raise BadInput(f"run '{name}' has finished, so it cannot be resumed: choose another run.name")
        latest = runs.latest_config(session, name)
        if latest is not None and (changed := frozen_differences(latest.resolved, resolved)):
            raise BadInput(f"run '{name}' cannot be resumed with other values: {'; '.join(changed)}")
        revision = runs.revise_config(session, name, resolved, run.document.fingerprint())
        tasks = [
            runs.NewTask(name=task.name, split=split, path=str(task.path), sha256=task.sha256)
            for split, folders in (("train", run.train), ("heldout", run.heldout))
            for task in folders
        ]
        runs.add_tasks(session, name, tasks)
        if not is_new:
            run_state.advance_status(session, name, RunStatus.RUNNING)
        return revision
