"""Task folders are part of a run: they must be there, and as they were when it started."""

from pathlib import Path

from db.harnesses import TaskOfExecution
from gyre.contracts.errors import GyreError
from gyre.settings.task_folders import current_sha256


def task_folder(task: TaskOfExecution, error: type[GyreError]) -> Path:
    """The task's folder. Raises the error when it is missing or has changed since the run started."""
    folder = Path(task.path)
    if not (folder / "instruction.md").is_file():
        raise error(f"task folder {folder} is not on this host")
    if current_sha256(folder) != task.sha256:
        raise error(f"task folder {folder} has changed since the run started: put it back or start another")
    return folder
