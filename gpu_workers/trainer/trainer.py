"""The trainer of one cell, as rank 0 sees it: load, train, publish, release."""

import time
from typing import Any

from db import training
from db.models import BatchRow
from db.object_store import BlobStore
from db.run_state import newest_config
from db.session import Database, transaction
from db.training import Claimant, StoredVersion
from gpu_workers.trainer.batch import BatchRunner, BatchWork, metrics_of
from gpu_workers.trainer.checkpoints import commit_initial_version, fetched, store_version
from gpu_workers.trainer.ranks import Ranks
from gpu_workers.trainer.replica import CloseResult, Replica
from gpu_workers.transfer import WeightSource
from gyre.contracts.engine import WeightsReference
from gyre.contracts.errors import TrainerFailed
from gyre.contracts.ids import BatchId, run_of
from gyre.settings.runfile import RunFile


class Trainer:
    """Holds one policy version, or none while an update has not been committed."""

    def __init__(
        self, database: Database, store: BlobStore, ranks: Ranks, replica: Replica, claimant: Claimant
    ) -> None:
        self._database, self._store = database, store
        self._ranks, self._replica, self._claimant = ranks, replica, claimant
        self._run = run_of(claimant.cell)
        self._source = WeightSource()
        self.version: int | None = None

    def load(self, version: int) -> int:
        """Bring weights and optimizer to a completed version; version 0 is made if it is not there yet.

        Raises TrainerFailed if the version was never completed.
        """
        with transaction(self._database) as session:
            stored = training.version_of(session, self._run, version)
        if stored is None and version == 0:
            stored = self._make_initial_version()
        if stored is None:
            raise TrainerFailed(f"policy version {version} of {self._run} was never completed")
        self._take(stored)
        return version

    def train(self, batch: BatchId) -> dict[str, Any]:
        """Make the batch's version: accumulate, update, checkpoint, row. Answers alike when it exists.

        Raises TrainerFailed unless the trainer holds the version before it.
        """
        with transaction(self._database) as session:
            row = session.get(BatchRow, batch)
            done = row and training.version_of(session, self._run, row.version)
        if row is None:
            raise TrainerFailed(f"{batch} does not exist")
        if done:
            return self._answer_again(row, done)
        if self.version != row.version - 1:
            raise TrainerFailed(f"{batch} trains version {row.version - 1}; the trainer holds {self.version}")
        return self._update(row, self._config())

    def publish(self, version: int) -> WeightsReference:
        """Expose a copy of the version that the trainer holds; peers may pull it until ``release``."""
        if version != self.version:
            raise TrainerFailed(f"cannot publish version {version}: the trainer holds {self.version}")
        with transaction(self._database) as session:
            stored = training.version_of(session, self._run, version)
        reference = self._source.expose(self._ranks.call(self._replica, "export"), version)
        if stored is None or stored.sha256 != reference.sha256:
            self._source.release(version)
            raise TrainerFailed(
                f"the weights in memory are not those that version {version} was committed with"
            )
        return reference

    def release(self, version: int) -> None:
        """Free the published copy; a version that is not published is free already."""
        self._source.release(version)

    def close(self) -> None:
        """Void every published copy."""
        self._source.close()

    def _update(self, row: BatchRow, config: RunFile) -> dict[str, Any]:
        runner = BatchRunner(self._database, self._ranks, self._replica, self._claimant, config)
        work = runner.run(BatchId(row.id))
        metrics = metrics_of(work, config.loss, row.num_executions)
        self.version = None  # from here on memory is ahead of Postgres: a failure needs a load
        closed = self._close(row, config, metrics, work)
        started = time.monotonic()
        tensors = self._ranks.call(self._replica, "export")
        optimizer = self._ranks.call(self._replica, "export_optimizer")
        stored = store_version(self._store, row.version, tensors, optimizer)
        work.seconds["checkpoint"] = time.monotonic() - started
        metrics["seconds"] = work.seconds
        committed = self._commit(BatchId(row.id), stored, closed, metrics)
        if committed.sha256 != stored.sha256:
            self._take(committed)
        self.version = row.version
        return {"version": row.version, "sha256": committed.sha256, "metrics": metrics}

    def _close(self, row: BatchRow, config: RunFile, metrics: dict[str, Any], work: BatchWork) -> CloseResult:
        """Without a gradient there is no step: momentum and weight decay would move the parameters."""
        started = time.monotonic()
        if metrics["skipped"]:
            closed = self._ranks.call(self._replica, "close_empty")
        else:
            clip = config.optimizer.clip_norm
            closed = self._ranks.call(self._replica, "close", row.num_executions, clip)
        work.seconds["update"] = time.monotonic() - started
        metrics["grad_norm"] = closed.grad_norm
        return closed

    def _commit(
        self, batch: BatchId, stored: StoredVersion, closed: CloseResult, metrics: dict[str, Any]
    ) -> StoredVersion:
        with transaction(self._database) as session:
            return training.commit_version(
                session,
                batch,
                stored,
                claimant=self._claimant,
                gradient_sha256=closed.gradient_sha256,
                metrics=metrics,
            )

    def _answer_again(self, row: BatchRow, stored: StoredVersion) -> dict[str, Any]:
        if self.version != stored.version:
            self._take(stored)
        return {"version": stored.version, "sha256": stored.sha256, "metrics": row.metrics or {}}

    def _take(self, stored: StoredVersion) -> None:
        self.version = None
        with fetched(self._store, stored) as files:
            self._ranks.call(self._replica, "load", files.weights_file, files.optimizer_file)
        self.version = stored.version

    def _make_initial_version(self) -> StoredVersion:
        model = self._config().model
        return commit_initial_version(self._database, self._store, self._run, model.path, model.dtype)

    def _config(self) -> RunFile:
        return read_config(self._database, self._run)


def read_config(database: Database, run: str) -> RunFile:
    """The run file in force, without services."""
    with transaction(database) as session:
        return RunFile.model_validate(newest_config(session, run))
