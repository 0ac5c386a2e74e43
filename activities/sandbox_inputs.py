"""A sandbox's inputs from the run: the task's folder, which must not have changed, and the limits."""

from pathlib import Path

from db.harnesses import TaskOfExecution
from gyre.contracts.errors import GyreError
from gyre.settings.task_folders import current_sha256
from sandbox.harness_process import Limits


def task_folder(task: TaskOfExecution, error: type[GyreError]) -> Path:
    """Return the task's folder. Raises ``error`` if it is missing or has changed since the run started."""
    folder = Path(task.path)
    if not (folder / "instruction.md").is_file():
        raise error(f"task folder {folder} is not on this host")
    if current_sha256(folder) != task.sha256:
        raise error(
            f"task folder {folder} has changed since the run started: restore it or start another run"
        )
    return folder


def sandbox_limits(task: TaskOfExecution) -> Limits:
    """Return the sandbox limits of the task's run file."""
    limits = task.resolved["limits"]
    return Limits(
        memory_bytes=limits["memory_bytes"],
        processes=limits["processes"],
        workspace_bytes=limits["workspace_bytes"],
    )
