"""The work an attempt left behind: captured into S3 once, after the attempt was sealed."""

from pathlib import Path

from sqlalchemy import Engine
from temporalio import activity

from db import harnesses, snapshots
from db.models import Snapshot
from db.session import transaction
from gyre.contracts.errors import SnapshotFailed
from gyre.contracts.ids import AttemptId, execution_of
from gyre.contracts.messages import SnapshotInput, SnapshotResult
from gyre.contracts.processes import WorkerBoot
from gyre.durable.activities import TAKE_SNAPSHOT
from gyre.durable.failures import translated
from gyre.sandbox import snapshot, workspace
from gyre.sandbox.attempts import attempt_directory, poll
from gyre.settings import Services
from gyre.store import BlobStore

SLACK = 2
"""A workspace is looked at once a second, so it may hold more than its cap when its harness is ended."""


class SnapshotActivities:
    """Runs on the host that has the attempt's workspace."""

    def __init__(self, *, boot: WorkerBoot, services: Services, database: Engine) -> None:
        self._database, self._boot = database, boot
        self._store = BlobStore(services, database)

    @activity.defn(name=TAKE_SNAPSHOT.name)
    @translated
    def take_snapshot(self, given: SnapshotInput) -> SnapshotResult:
        """Capture the sealed attempt's workspace, store it, record it; then remove the workspace.

        Raises Fenced while the attempt is open, SnapshotFailed if there is no workspace or it cannot be
        captured.
        """
        attempt = AttemptId(given.attempt_id)
        directory = attempt_directory(self._boot.state_dir, attempt)
        with transaction(self._database) as session:
            snapshots.require_sealed(session, attempt)
            row = snapshots.of_attempt(session, attempt)
        if row is None:
            row = self._take(attempt, directory)
        for name in ("workspace", "home", "etc"):
            workspace.remove(directory / name)
        return _result(row)

    def _take(self, attempt: AttemptId, directory: Path) -> Snapshot:
        if poll(directory).state in ("starting", "running"):
            raise SnapshotFailed(f"processes of {attempt} are still there; it has to be sealed first")
        if not (directory / "provisioned.json").exists():
            raise SnapshotFailed(f"{attempt} was never provisioned: there is nothing to capture")
        archive = directory / "snapshot.tar.zst"
        with transaction(self._database) as session:
            resolved = harnesses.task_of(session, execution_of(attempt)).resolved
        manifest = snapshot.capture(
            directory / "workspace", archive, max_bytes=SLACK * resolved["limits"]["workspace_bytes"]
        )
        before = workspace.provisioned_state(directory)
        changed = workspace.changed_files(before, workspace.file_state(directory / "workspace"))
        key = self._store.put_file(archive)
        with transaction(self._database) as session:
            row = snapshots.record(
                session,
                attempt,
                blob_key=key,
                num_files=manifest.num_files,
                num_bytes=manifest.num_bytes,
                manifest=manifest.document() | {"num_changed_files": changed},
            )
        archive.unlink()
        return row


def _result(row: Snapshot) -> SnapshotResult:
    return SnapshotResult(
        snapshot_id=row.id,
        num_files=row.num_files,
        num_bytes=row.num_bytes,
        num_changed_files=row.manifest["num_changed_files"],
    )
