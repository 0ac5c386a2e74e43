"""Starting a run: check everything first, then rows, then processes, then the workflow.

Each step can be repeated, so a launch that was interrupted is finished by ``gyre run --resume``.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from db import run_state, runs
from db.session import connect, transaction
from gyre import stack
from gyre.cli import external, temporal
from gyre.contracts.errors import BadInput, GyreError
from gyre.contracts.ids import RunId
from gyre.contracts.lifecycle import RunStatus
from gyre.sandbox.adapters import check_harness
from gyre.settings.models import check_model
from gyre.settings.runfile import RunFile, frozen_differences, load_run_file
from gyre.settings.services import Services
from gyre.settings.tasks import TaskFolder, load_tasks

EVALUATE_SLOTS = 4
"""Evaluators are short; more of them than cores would only slow each other down on a laptop."""
LOOK_S = 1.0
"""Between two looks at Postgres."""
CHECK_S = 60.0
"""Between two looks whether the run's workflow is still open."""
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
    revision = record(run, services, resume=resume)
    stack.start_run(
        state_dir,
        run.name,
        services,
        revision=revision,
        harness_slots=run.document.schedule.max_concurrent * run.document.cells.count,
        evaluate_slots=EVALUATE_SLOTS,
    )
    asyncio.run(temporal.start(services, run.name))
    return services


def record(run: CheckedRun, services: Services, *, resume: bool) -> int:
    """Write the rows of the run; the revision of its configuration that is in force now.

    Raises BadInput where the name is taken or a frozen key changed.
    """
    resolved = run.document.resolved()
    engine = connect(services.postgres_dsn, pool_size=1)
    try:
        with transaction(engine) as session:
            made = runs.create(session, run.name)
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
    finally:
        engine.dispose()


def _require_resumable(row: runs.Run | None, resume: bool) -> None:
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
) -> RunStatus:
    """Call ``look`` again and again until it says that the run has ended; the status it ended with.

    Raises GyreError when the run's workflow is found closed twice in a row and the run has not ended: a
    workflow that was terminated, say, says nothing to Postgres. Once is not enough, because `gyre stop`
    closes the workflow a few seconds before it marks the run.
    """
    checked_at, was_closed = time.monotonic(), False
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


def _is_closed(services: Services, run: RunId) -> bool:
    try:
        return asyncio.run(temporal.is_closed(services, run))
    except BadInput:
        return False  # the server is away for a while; the keeper brings it back


def settle(state_dir: Path, run: RunId, services: Services, status: RunStatus) -> None:
    """After the run's row is terminal: let its workflows close, then end its processes.

    A run that failed leaves groups and rollouts in progress: they are cancelled.
    """
    if status is RunStatus.FAILED:
        asyncio.run(temporal.cancel(services, run, limit_s=CLOSE_S))
    else:
        asyncio.run(temporal.wait_closed(services, run, limit_s=CLOSE_S))
    stack.stop_run(state_dir, run)
