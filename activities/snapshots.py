"""The work an attempt left behind: captured into S3 once, after the attempt was sealed."""

import tempfile
from pathlib import Path

from temporalio import activity

from activities.beating import beating
from db import harnesses, snapshots
from db.models import SnapshotRow
from db.object_store import BlobStore
from db.session import Database, transaction
from gyre.contracts.boot import WorkerBoot
from gyre.contracts.errors import SnapshotFailed, WorkspaceUnusable
from gyre.contracts.ids import AttemptId, execution_of
from gyre.contracts.messages import SnapshotInput, SnapshotResult
from gyre.durable.activities import TAKE_SNAPSHOT
from gyre.durable.failures import translated
from gyre.settings import Services
from sandbox import snapshot, workspace
from sandbox.deadline import Deadline
from sandbox.harness_process import attempt_directory, poll

ARCHIVE = "archive-"
SLOW_TRIES = 3
"""A machine may be busy once; what took too long so often is not tried again."""
SLACK = 2
"""A workspace is looked at once a second, so it may hold more than its cap when its harness is ended."""


class SnapshotActivities:
    """Runs on the host that has the attempt's workspace."""

    def __init__(self, *, boot: WorkerBoot, services: Services, database: Database) -> None:
        self._database, self._boot = database, boot
        self._store = BlobStore(services, database)

    @activity.defn(name=TAKE_SNAPSHOT.name, no_thread_cancel_exception=True)
    @translated
    def take_snapshot(self, input: SnapshotInput) -> SnapshotResult:
        """Capture the sealed attempt's workspace, store it, record it; then remove the workspace.

        Raises Fenced while the attempt is open, SnapshotFailed if it cannot be captured in time,
        WorkspaceUnusable if it never can be.
        """
        over = SnapshotFailed if activity.info().attempt < SLOW_TRIES else WorkspaceUnusable
        deadline = Deadline(input.limit_s, over, f"saving the workspace of {input.attempt_id}")
        with beating():
            return self._save(AttemptId(input.attempt_id), deadline)

    def _save(self, attempt: AttemptId, deadline: Deadline) -> SnapshotResult:
        directory = attempt_directory(self._boot.state_dir, attempt)
        row = self._saved(attempt) or self._take_once(attempt, directory, deadline)
        # Of a try whose worker was killed, the archive is left too.
        done_with = [directory / name for name in ("workspace", "home", "etc")]
        for folder in [*done_with, *directory.glob(f"{ARCHIVE}*")]:
            workspace.remove(folder)
        return _result(row)

    def _saved(self, attempt: AttemptId) -> SnapshotRow | None:
        with transaction(self._database) as session:
            snapshots.require_sealed(session, attempt)
            return snapshots.of_attempt(session, attempt)

    def _take_once(self, attempt: AttemptId, directory: Path, deadline: Deadline) -> SnapshotRow:
        """A try that timed out may end after all: it saves the work and removes it under this one."""
        try:
            return self._take(attempt, directory, deadline)
        except (SnapshotFailed, OSError):
            if (row := self._saved(attempt)) is None:
                raise
            return row

    def _take(self, attempt: AttemptId, directory: Path, deadline: Deadline) -> SnapshotRow:
        if poll(directory).state in ("starting", "running"):
            raise SnapshotFailed(f"processes of {attempt} are still there; it has to be sealed first")
        if not (directory / "provisioned.json").exists():
            raise WorkspaceUnusable(f"{attempt} was never provisioned: there is nothing to capture")
        with transaction(self._database) as session:
            resolved = harnesses.task_of(session, execution_of(attempt)).resolved
        work, max_bytes = directory / "workspace", SLACK * resolved["limits"]["workspace_bytes"]
        # A folder for each try: one that timed out may still be writing its archive.
        with tempfile.TemporaryDirectory(prefix=ARCHIVE, dir=directory, ignore_cleanup_errors=True) as own:
            archive = Path(own) / "snapshot.tar.zst"
            manifest = snapshot.capture(work, archive, max_bytes=max_bytes, deadline=deadline)
            after = workspace.file_state(work, deadline)
            key = self._store.put_file(archive)
        changed = workspace.changed_files(workspace.provisioned_state(directory), after)
        with transaction(self._database) as session:
            return snapshots.record(
                session,
                attempt,
                blob_key=key,
                num_files=manifest.num_files,
                num_bytes=manifest.num_bytes,
                manifest=manifest.document() | {"num_changed_files": changed},
            )


def _result(row: SnapshotRow) -> SnapshotResult:
    return SnapshotResult(
        snapshot_id=row.id,
        num_files=row.num_files,
        num_bytes=row.num_bytes,
        num_changed_files=row.manifest["num_changed_files"],
    )
