"""Capture an attempt's work into S3, once, after the attempt was sealed."""

import tempfile
from pathlib import Path

from temporalio import activity

from activities.heartbeats import heartbeats_from_thread
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

FOLDERS = ("workspace", "home", "etc")
"""Folders of an attempt to delete once its work is saved."""
ARCHIVE = "archive-"
SLOW_TRIES = 3
"""Tries that may take too long, since a machine may be busy once; the last one is final."""
SLACK = 2
"""Bytes captured at most, in workspace caps: sizes are checked once per second, so a cap can be overshot."""


class SnapshotActivities:
    """Activities on the host that holds the attempt's workspace."""

    def __init__(self, *, boot: WorkerBoot, services: Services, database: Database) -> None:
        self._database, self._boot = database, boot
        self._store = BlobStore(services, database)

    @activity.defn(name=TAKE_SNAPSHOT.name, no_thread_cancel_exception=True)
    @translated
    def take_snapshot(self, input: SnapshotInput) -> SnapshotResult:
        """Capture the sealed attempt's workspace, store it and record it; then remove the workspace.

        Raises Fenced while the attempt is open, SnapshotFailed if it cannot be captured in time, and
        WorkspaceUnusable if it never can be.
        """
        over = SnapshotFailed if activity.info().attempt < SLOW_TRIES else WorkspaceUnusable
        deadline = Deadline(input.limit_s, over, f"saving the workspace of {input.attempt_id}")
        attempt = AttemptId(input.attempt_id)
        directory = attempt_directory(self._boot.state_dir, attempt)
        with heartbeats_from_thread():
            row = self._saved(attempt) or self._save(attempt, directory, deadline)
            # A try whose worker was killed leaves its archive behind.
            for folder in [*(directory / name for name in FOLDERS), *directory.glob(f"{ARCHIVE}*")]:
                workspace.remove(folder)
        return SnapshotResult(
            snapshot_id=row.id,
            num_files=row.num_files,
            num_bytes=row.num_bytes,
            num_changed_files=row.manifest["num_changed_files"],
        )

    def _saved(self, attempt: AttemptId) -> SnapshotRow | None:
        """Return the snapshot if there is one already. Raises Fenced while the attempt is open."""
        with transaction(self._database) as session:
            snapshots.require_sealed(session, attempt)
            return snapshots.of_attempt(session, attempt)

    def _save(self, attempt: AttemptId, directory: Path, deadline: Deadline) -> SnapshotRow:
        try:
            return self._capture(attempt, directory, deadline)
        except (SnapshotFailed, OSError):
            # A timed-out earlier try may still finish and delete the workspace while this one works.
            if (row := self._saved(attempt)) is None:
                raise
            return row

    def _capture(self, attempt: AttemptId, directory: Path, deadline: Deadline) -> SnapshotRow:
        if poll(directory).state in ("starting", "running"):
            raise SnapshotFailed(f"processes of {attempt} are still there; it has to be sealed first")
        if not (directory / "provisioned.json").exists():
            raise WorkspaceUnusable(f"{attempt} was never provisioned: there is nothing to capture")
        with transaction(self._database) as session:
            resolved = harnesses.task_of(session, execution_of(attempt)).resolved
        work, max_bytes = directory / "workspace", SLACK * resolved["limits"]["workspace_bytes"]
        # One folder per try: a timed-out earlier try may still be writing its archive.
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
