"""Score a snapshot in a fresh sandbox. A committed reward is never computed again."""

import tempfile
import time
from pathlib import Path

from temporalio import activity

from activities.heartbeats import heartbeats_from_thread
from activities.sandbox_inputs import sandbox_limits, task_folder
from db import evaluations, harnesses, snapshots
from db.harnesses import TaskOfExecution
from db.models import RewardRow, SnapshotRow
from db.object_store import BlobStore
from db.session import Database, transaction
from gyre.contracts.boot import WorkerBoot
from gyre.contracts.errors import EvaluatorFailed, SnapshotFailed
from gyre.contracts.ids import EvaluationId, ExecutionId, SnapshotId
from gyre.contracts.messages import EvaluateInput, EvaluateResult
from gyre.durable.activities import EVALUATE_SNAPSHOT
from gyre.durable.failures import translated
from gyre.settings import Services
from sandbox.evaluate import EvaluationFailure, EvaluationOutcome, evaluate


class EvaluatorActivities:
    """Activities of Evaluation, on any host that has the tasks and reaches S3."""

    def __init__(self, *, boot: WorkerBoot, services: Services, database: Database) -> None:
        self._database, self._boot = database, boot
        self._store = BlobStore(services, database)

    @activity.defn(name=EVALUATE_SNAPSHOT.name)
    @translated
    def evaluate_snapshot(self, input: EvaluateInput) -> EvaluateResult:
        """Try once to score the snapshot. Without a valid reward, record why and raise EvaluatorFailed.

        A snapshot that is missing from the store or cannot be unpacked has no valid reward either. An
        outage of S3 says nothing about the work: boto's own error is raised, and Temporal repeats the try.
        """
        began = time.monotonic()
        with heartbeats_from_thread():
            reward, row, task = self._open(input)
            if reward is None:
                outcome = self._try(input, row, task)
                with transaction(self._database) as session:
                    reward = evaluations.succeed(
                        session,
                        EvaluationId(input.evaluation_id),
                        execution=ExecutionId(input.execution_id),
                        value=outcome.reward,
                        try_number=input.try_number,
                        output_tail=outcome.output_tail,
                    )
        return EvaluateResult(reward_id=reward.id, reward=reward.value, seconds=time.monotonic() - began)

    def _open(self, input: EvaluateInput) -> tuple[RewardRow | None, SnapshotRow, TaskOfExecution]:
        """Open the evaluation unless it is open. The reward is there if an earlier try committed it."""
        evaluation, execution = EvaluationId(input.evaluation_id), ExecutionId(input.execution_id)
        snapshot = SnapshotId(input.snapshot_id)
        with transaction(self._database) as session:
            row = snapshots.get(session, snapshot)
            if row is None:
                raise EvaluatorFailed(f"there is no snapshot {snapshot}")
            evaluations.open_evaluation(
                session, evaluation, execution=execution, snapshot=snapshot, number=input.number
            )
            task = harnesses.task_of(session, execution)
            return evaluations.reward_of(session, evaluation), row, task

    def _try(self, input: EvaluateInput, row: SnapshotRow, task: TaskOfExecution) -> EvaluationOutcome:
        scratch = Path(self._boot.state_dir) / "evaluations"
        scratch.mkdir(parents=True, exist_ok=True)
        try:
            tests = task_folder(task, EvaluatorFailed) / "tests"
            with tempfile.TemporaryDirectory(dir=scratch, prefix="archive-") as folder:
                archive = Path(folder) / "snapshot.tar.zst"
                self._store.get_file(row.blob_key, archive)
                limits = sandbox_limits(task)
                return evaluate(tests, archive, scratch, limit_s=input.limit_s, limits=limits)
        except (EvaluatorFailed, SnapshotFailed) as error:
            tail = error.output_tail if isinstance(error, EvaluationFailure) else ""
            with transaction(self._database) as session:
                evaluations.note_failure(
                    session,
                    EvaluationId(input.evaluation_id),
                    try_number=input.try_number,
                    failure=str(error),
                    output_tail=tail,
                    final=input.final,
                )
            raise EvaluatorFailed(str(error)) from error
