"""The trainer of one cell as rank 0 runs it: load, train, publish, release."""

from typing import Any

from db import training
from db.models import BatchRow
from db.object_store import BlobStore
from db.run_state import newest_config
from db.session import Database, transaction
from db.training import Claimant, StoredVersion
from gpu_workers.trainer.batch import BatchRunner
from gpu_workers.trainer.checkpoints import commit_initial_version, fetched, store_version
from gpu_workers.trainer.ranks import Ranks
from gpu_workers.trainer.replica import CloseResult, Replica
from gpu_workers.transfer import WeightSource
from gyre.contracts.engine import WeightsReference
from gyre.contracts.errors import TrainerFailed
from gyre.contracts.ids import BatchId, run_of
from gyre.settings.runfile import RunFile


class Trainer:
    """Holds one policy version; ``version`` is None before a load and while an update is uncommitted."""

    def __init__(
        self, database: Database, store: BlobStore, ranks: Ranks, replica: Replica, claimant: Claimant
    ) -> None:
        self._database, self._store = database, store
        self._ranks, self._replica, self._claimant = ranks, replica, claimant
        self._run = run_of(claimant.cell)
        self._source = WeightSource()
        self.version: int | None = None

    def load(self, version: int) -> int:
        """Load weights and optimizer of a completed version; make version 0 if it does not exist yet.

        Raises TrainerFailed if the version was never completed.
        """
        with transaction(self._database) as session:
            stored = training.version_of(session, self._run, version)
        if stored is None and version == 0:
            model = read_config(self._database, self._run).model
            stored = commit_initial_version(self._database, self._store, self._run, model.path, model.dtype)
        if stored is None:
            raise TrainerFailed(f"policy version {version} of {self._run} was never completed")
        self._load_files(stored)
        return version

    def train(self, batch: BatchId) -> dict[str, Any]:
        """Train a batch into its policy version; if that version exists, return the same answer again.

        Raises TrainerFailed unless the trainer holds the version before it.
        """
        with transaction(self._database) as session:
            row = session.get(BatchRow, batch)
            existing = row and training.version_of(session, self._run, row.version)
        if row is None:
            raise TrainerFailed(f"{batch} does not exist")
        if existing:
            if self.version != existing.version:
                self._load_files(existing)
            return _answer(existing, row.metrics or {})
        if self.version != row.version - 1:
            raise TrainerFailed(f"{batch} trains version {row.version - 1}; the trainer holds {self.version}")
        return self._update(batch, row, read_config(self._database, self._run))

    def publish(self, version: int) -> WeightsReference:
        """Expose a copy of the version that the trainer holds; peers may pull it until ``release``."""
        if version != self.version:
            raise TrainerFailed(f"cannot publish version {version}: the trainer holds {self.version}")
        with transaction(self._database) as session:
            stored = training.version_of(session, self._run, version)
        # The checksum is known once the copy is exposed; until this returns, nobody has the reference.
        reference = self._source.expose(self._ranks.call(self._replica, "export"), version)
        if stored is None or stored.sha256 != reference.sha256:
            self._source.release(version)
            raise TrainerFailed(f"the weights in memory differ from those committed as version {version}")
        return reference

    def release(self, version: int) -> None:
        """Free the published copy of a version; without one, do nothing."""
        self._source.release(version)

    def close(self) -> None:
        """Void every published copy."""
        self._source.close()

    def _update(self, batch: BatchId, row: BatchRow, config: RunFile) -> dict[str, Any]:
        """Accumulate the batch's gradient, step, store the checkpoint, commit the version."""
        runner = BatchRunner(self._database, self._ranks, self._replica, self._claimant, config)
        work = runner.run(batch)
        metrics = work.metrics(config.loss, row.num_executions)
        # From here until the commit, memory is ahead of Postgres: after a failure it must be loaded again.
        self.version = None
        with work.timed("update"):
            closed: CloseResult
            if metrics["skipped"]:
                # No step without a gradient: momentum and weight decay would still move the parameters.
                closed = self._ranks.call(self._replica, "close_empty")
            else:
                clip_norm = config.optimizer.clip_norm
                closed = self._ranks.call(self._replica, "close", row.num_executions, clip_norm)
        with work.timed("checkpoint"):
            tensors = self._ranks.call(self._replica, "export")
            optimizer = self._ranks.call(self._replica, "export_optimizer")
            stored = store_version(self._store, row.version, tensors, optimizer)
        metrics |= {"grad_norm": closed.grad_norm, "seconds": work.seconds}
        with transaction(self._database) as session:
            committed = training.commit_version(
                session,
                batch,
                stored,
                claimant=self._claimant,
                gradient_sha256=closed.gradient_sha256,
                metrics=metrics,
            )
        if committed.sha256 != stored.sha256:  # an earlier try of this batch was committed after all
            self._load_files(committed)
        self.version = committed.version
        return _answer(committed, metrics)

    def _load_files(self, stored: StoredVersion) -> None:
        self.version = None
        with fetched(self._store, stored) as files:
            self._ranks.call(self._replica, "load", files.weights_file, files.optimizer_file)
        self.version = stored.version


def read_config(database: Database, run: str) -> RunFile:
    """Read the run file in force, without services."""
    with transaction(database) as session:
        return RunFile.model_validate(newest_config(session, run))


def _answer(version: StoredVersion, metrics: dict[str, Any]) -> dict[str, Any]:
    return {"version": version.version, "sha256": version.sha256, "metrics": metrics}
