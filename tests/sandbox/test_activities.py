"""The activities against real Postgres, S3, processes and sandboxes."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from boto3.exceptions import S3UploadFailedError
from sqlalchemy import select
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.evaluator import EvaluatorActivities
from activities.harness import HarnessActivities
from activities.snapshots import SnapshotActivities
from db import attempts, evaluations
from db.models import (
    AttemptRow,
    EvaluationRow,
    ExecutionRow,
    QueryGroupRow,
    RewardRow,
    RunConfigRow,
    RunRow,
    SnapshotRow,
    TaskRow,
)
from db.object_store import BlobStore
from db.session import Database, transaction
from gyre.contracts.boot import GatewayAddress, WorkerBoot
from gyre.contracts.errors import Fenced, SnapshotFailed
from gyre.contracts.ids import EvaluationId, ExecutionId, evaluation_id
from gyre.contracts.lifecycle import EndReason, EvaluationStatus
from gyre.contracts.messages import AttemptInput, EvaluateInput, HarnessInput, SealInput, SnapshotInput
from gyre.contracts.tokens import attempt_of_token
from gyre.settings import Services
from gyre.settings.task_folders import folder_sha256
from sandbox.harness_process import attempt_directory, poll
from tests.sandbox.conftest import Gateway, calls_shell, make_task, needs_bwrap, says, wait_until

pytestmark = needs_bwrap
EXECUTION = ExecutionId("run/r/group/0/rollout/0")
ATTEMPT = f"{EXECUTION}/attempt/1"
SCORE = '[ "$(cat out)" = hello ] && echo 0.75 > /logs/verifier/reward.txt'


class Host:
    """One execution with an open attempt, and the activities of its host."""

    def __init__(self, database: Database, services: Services, folder: Path, gateway: Gateway) -> None:
        self.database, self.folder, self.gateway = database, folder, gateway
        self.task = make_task(folder / "task", instruction="write hello", test=SCORE)
        boot = WorkerBoot(
            run="r", services={}, state_dir=str(folder / "state"), host="h",
            gateways=[GatewayAddress(url="http://127.0.0.1:9", socket=str(gateway.path))],
            harness_slots=2, evaluate_slots=2,
        )  # fmt: skip
        given = {"boot": boot, "services": services, "database": database}
        self.harness = HarnessActivities(**given)
        self.snapshots = SnapshotActivities(**given)
        self.evaluator = EvaluatorActivities(**given)
        self.directory = attempt_directory(boot.state_dir, ATTEMPT)
        self._insert()

    def _insert(self) -> None:
        limits = {"memory_bytes": 1 << 30, "processes": 64, "workspace_bytes": 1 << 26}
        resolved = {
            "harness": {"name": "tiny", "options": {}},
            "model": {"context_tokens": 4000},
            "sampling": {"max_tokens": 500},
            "limits": limits,
        }
        with transaction(self.database) as session:
            rows = (
                RunRow(id="r", secret=b"secret"),
                RunConfigRow(run_id="r", revision=0, resolved=resolved, fingerprint="f"),
                TaskRow(
                    id="t",
                    run_id="r",
                    name="t",
                    split="train",
                    path=str(self.task),
                    sha256=folder_sha256(self.task),
                ),
                QueryGroupRow(id="run/r/group/0", run_id="r", index=0, task_id="t", size=2, policy_version=0),
                ExecutionRow(id=EXECUTION, group_id="run/r/group/0", run_id="r", index=0),
            )
            for row in rows:
                session.add(row)
                session.flush()
            attempts.open_attempt(session, EXECUTION, 1, "h")

    def provision(self, limit_s: float = 30):
        given = AttemptInput(attempt_id=ATTEMPT, limit_s=limit_s)
        return ActivityEnvironment().run(self.harness.provision_workspace, given)

    def reprovision(self):
        """Provision the execution's next attempt."""
        with transaction(self.database) as session:
            attempts.open_attempt(session, EXECUTION, 2, "h")
        given = AttemptInput(attempt_id=f"{EXECUTION}/attempt/2", limit_s=30)
        return ActivityEnvironment().run(self.harness.provision_workspace, given)

    def run(self, environment: ActivityEnvironment | None = None, limit_s: float = 30):
        given = HarnessInput(attempt_id=ATTEMPT, limit_s=limit_s)
        return asyncio.run((environment or ActivityEnvironment()).run(self.harness.run_harness, given))

    def seal(self, reason: EndReason = EndReason.EXITED):
        given = SealInput(attempt_id=ATTEMPT, end_reason=reason, exit_code=0)
        return ActivityEnvironment().run(self.harness.seal_attempt, given)

    def snapshot(self, limit_s: float = 30, try_number: int = 1):
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, attempt=try_number)
        given = SnapshotInput(attempt_id=ATTEMPT, limit_s=limit_s)
        return environment.run(self.snapshots.take_snapshot, given)

    def evaluate(self, try_number: int = 1, number: int = 1, final: bool = False):
        given = EvaluateInput(
            evaluation_id=evaluation_id(EXECUTION, number),
            execution_id=EXECUTION,
            snapshot_id=f"{ATTEMPT}/snapshot",
            number=number,
            try_number=try_number,
            limit_s=20,
            final=final,
        )
        return ActivityEnvironment().run(self.evaluator.evaluate_snapshot, given)

    def write_test(self, text: str) -> None:
        """Replace the task's test, as if the run had started with this one."""
        (self.task / "tests" / "test.sh").write_text(text)
        with transaction(self.database) as session:
            session.get_one(TaskRow, "t").sha256 = folder_sha256(self.task)

    def rows(self, table: type):
        with transaction(self.database) as session:
            return list(session.scalars(select(table)))


@pytest.fixture
def host(database: Database, services: Services, tmp_path: Path, gateway: Gateway):
    made = Host(database, services, tmp_path, gateway)
    yield made
    with transaction(database) as session:
        attempts.seal(session, made.rows(AttemptRow)[0].id, EndReason.CANCELLED)
    made.seal()


def test_an_execution_runs_from_provision_to_reward_and_every_step_may_be_repeated(host: Host) -> None:
    host.gateway.script = [calls_shell("echo hello > out"), says("done")]
    assert host.provision() == host.provision()
    first = host.run()
    assert (first.end_reason, first.exit_code, first.failure) == (EndReason.EXITED, 0, None)
    assert host.run() == first
    assert len(host.gateway.requests) == 2
    assert host.seal() == host.seal()
    assert not (host.directory / "spec.json").exists()
    taken = host.snapshot()
    assert (taken.num_files, taken.num_changed_files) == (2, 1)
    assert not (host.directory / "workspace").exists()
    assert host.snapshot() == taken
    scored = host.evaluate()
    assert scored.reward == 0.75
    again = host.evaluate(try_number=2)
    assert (again.reward_id, again.reward) == (scored.reward_id, scored.reward)
    assert [len(host.rows(table)) for table in (SnapshotRow, EvaluationRow, RewardRow)] == [1, 1, 1]
    assert host.rows(EvaluationRow)[0].num_tries == 1
    manifest = host.rows(SnapshotRow)[0].manifest
    assert (manifest["files"], manifest["processes"]) == ("captured", "not captured")


def test_an_untouched_workspace_is_reported_as_unchanged(host: Host) -> None:
    host.gateway.script = [says("I would rather not")]
    host.provision()
    host.run()
    host.seal()
    assert host.snapshot().num_changed_files == 0


def test_work_left_at_the_time_limit_is_scored(host: Host) -> None:
    """A harness timed out although its work was right, and the end of its sandbox prevented scoring."""
    host.gateway.script = [calls_shell("echo hello > out; sleep 30"), says("never")]
    host.provision()
    assert host.run(limit_s=2).end_reason == EndReason.TIME_LIMIT
    host.seal(EndReason.TIME_LIMIT)
    host.snapshot()
    assert host.evaluate().reward == 0.75


def test_no_snapshot_before_the_seal_and_no_process_after_it(host: Host) -> None:
    """Grading began while the agent could still be running and changing its work."""
    host.gateway.script = [calls_shell("echo hello > out; while :; do sleep 0.1; done")]
    host.provision()
    _run_until(host, lambda: (host.directory / "workspace" / "out").exists(), worker_shutdown=True)
    assert poll(host.directory).state == "running"
    with pytest.raises(ApplicationError, match="not sealed"):
        host.snapshot()
    with transaction(host.database) as session:
        attempts.seal(session, host.rows(AttemptRow)[0].id, EndReason.CANCELLED)
    with pytest.raises(ApplicationError, match="still there"):
        host.snapshot()
    host.seal()
    assert poll(host.directory).state == "exited"
    assert host.snapshot().num_changed_files == 1


def test_a_worker_that_shuts_down_leaves_the_harness_running_and_the_next_attaches(host: Host) -> None:
    host.gateway.script = [calls_shell("touch at_work; while [ ! -e go ]; do sleep 0.05; done"), says("done")]
    host.provision()
    _run_until(host, lambda: (host.directory / "workspace" / "at_work").exists(), worker_shutdown=True)
    assert poll(host.directory).state == "running"
    (host.directory / "workspace" / "go").touch()
    assert host.run().exit_code == 0
    assert len(host.gateway.requests) == 2


def test_a_requested_cancellation_ends_the_harness(host: Host) -> None:
    host.gateway.script = [calls_shell("touch at_work; sleep 100")]
    host.provision()
    _run_until(host, lambda: (host.directory / "workspace" / "at_work").exists(), cancel_requested=True)
    assert poll(host.directory).end_reason == EndReason.CANCELLED


def test_a_lost_sandbox_ends_the_attempt(host: Host) -> None:
    """A container was silently replaced by a blank one in mid-episode."""
    host.gateway.script = [calls_shell("touch at_work; sleep 100")]
    host.provision()
    _run_until(host, lambda: (host.directory / "workspace" / "at_work").exists(), worker_shutdown=True)
    os.kill(json.loads((host.directory / "status.json").read_text())["supervisor_pid"], signal.SIGKILL)
    ended = host.run()
    assert ended.end_reason == EndReason.SANDBOX_LOST
    assert ended.failure


def test_nothing_starts_for_a_sealed_attempt(host: Host) -> None:
    host.provision()
    host.seal(EndReason.CANCELLED)
    for start in (host.provision, host.run):
        with pytest.raises(ApplicationError, match="sealed") as refused:
            start()
        assert refused.value.non_retryable
    assert not host.gateway.requests


def test_the_harness_gets_the_token_of_its_attempt(host: Host) -> None:
    host.gateway.script = [says("done")]
    host.provision()
    host.run()
    assert attempt_of_token(b"secret", host.gateway.keys[0].removeprefix("Bearer ")) == ATTEMPT


def test_a_failed_evaluation_is_pending_and_only_the_evaluator_is_retried(host: Host) -> None:
    """A verifier that timed out had the agent run again, or gave a silent reward of 0."""
    host.gateway.script = [calls_shell("echo hello > out"), says("done")]
    host.provision()
    host.run()
    host.seal()
    host.snapshot()
    host.write_test("echo broken; exit 7")
    with pytest.raises(ApplicationError) as failed:
        host.evaluate(try_number=1)
    assert failed.value.type == "EvaluatorFailed"
    row = host.rows(EvaluationRow)[0]
    assert (row.status, row.num_tries, row.output_tail) == (EvaluationStatus.PENDING, 1, "broken\n")
    assert "exited with 7" in row.failure
    assert host.rows(RewardRow) == []
    host.write_test(SCORE)
    assert host.evaluate(try_number=2).reward == 0.75
    row = host.rows(EvaluationRow)[0]
    assert (row.status, row.num_tries, row.failure) == (EvaluationStatus.SUCCEEDED, 2, None)
    assert len(host.gateway.requests) == 2


def test_the_last_try_ends_the_evaluation_and_a_late_reward_does_not_count(host: Host) -> None:
    host.provision()
    host.seal(EndReason.CANCELLED)
    host.snapshot()
    host.write_test("true")
    with pytest.raises(ApplicationError):
        host.evaluate(final=True)
    assert host.rows(EvaluationRow)[0].status == EvaluationStatus.FAILED
    name = EvaluationId(evaluation_id(EXECUTION, 1))
    with pytest.raises(Fenced), transaction(host.database) as session:
        evaluations.succeed(session, name, execution=EXECUTION, value=1.0, try_number=1, output_tail="")
    assert host.rows(RewardRow) == []


def test_an_attempt_without_workspace_leaves_no_snapshot(host: Host) -> None:
    host.seal(EndReason.PROVISION_FAILED)
    with pytest.raises(ApplicationError, match="never provisioned") as failed:
        host.snapshot()
    assert (failed.value.type, failed.value.non_retryable) == ("WorkspaceUnusable", True)


def test_a_changed_task_folder_is_neither_run_nor_scored(host: Host) -> None:
    host.provision()
    host.seal(EndReason.CANCELLED)
    host.snapshot()
    with (host.task / "tests" / "test.sh").open("a") as file:
        file.write("# another")
    for step, kind in ((host.evaluate, "EvaluatorFailed"), (host.reprovision, "ProvisionFailed")):
        with pytest.raises(ApplicationError, match="has changed since the run started") as failed:
            step()
        assert failed.value.type == kind
    assert "has changed" in host.rows(EvaluationRow)[0].failure


def test_provision_and_snapshot_end_at_their_own_limits(host: Host) -> None:
    with pytest.raises(ApplicationError, match="took longer than the 0 s") as failed:
        host.provision(limit_s=0)
    assert failed.value.type == "ProvisionFailed"
    host.provision()
    host.seal(EndReason.CANCELLED)
    for try_number, kind in ((1, "SnapshotFailed"), (3, "WorkspaceUnusable")):
        with pytest.raises(ApplicationError, match="took longer than the 0 s") as failed:
            host.snapshot(limit_s=0, try_number=try_number)
        assert failed.value.type == kind
    assert not list(host.directory.glob("archive-*"))
    assert host.snapshot().num_files == 1


def test_an_s3_error_does_not_make_the_workspace_unusable(host: Host) -> None:
    host.provision()
    host.seal(EndReason.CANCELLED)
    bucket, host.snapshots._store._bucket = host.snapshots._store._bucket, "no-such-bucket"
    with pytest.raises(S3UploadFailedError):
        host.snapshot()
    host.snapshots._store._bucket = bucket
    host.snapshot()
    key, archive = host.rows(SnapshotRow)[0].blob_key, host.folder / "archive"
    store = host.evaluator._store
    store._s3.delete_object(Bucket=bucket, Key=key)
    with pytest.raises(SnapshotFailed, match="not in the store"):
        store.get_file(key, archive)
    with pytest.raises(ApplicationError, match="not in the store") as failed:
        host.evaluate()
    assert failed.value.type == "EvaluatorFailed"


class FirstPutFails(BlobStore):
    """Records what is put; S3 is away for the first put."""

    given: ClassVar[list[Path]] = []

    def put_file(self, path: Path) -> str:
        self.given.append(path)
        if len(self.given) == 1:
            raise S3UploadFailedError("away")
        return super().put_file(path)


def test_each_try_writes_its_own_archive(host: Host, services: Services) -> None:
    """A try that timed out may still be writing when the next one begins."""
    host.provision()
    host.seal(EndReason.CANCELLED)
    left = host.directory / "archive-of-a-killed-try"
    left.mkdir()
    store = host.snapshots._store = FirstPutFails(services, host.database)
    with pytest.raises(S3UploadFailedError):
        host.snapshot()
    host.snapshot()
    assert len(set(store.given)) == 2
    assert not list(host.directory.glob("*archive*"))


class SavedByAnother(BlobStore):
    """A store in which another try saves and removes the workspace during the first put."""

    other: Callable[[], object] | None = None

    def put_file(self, path: Path) -> str:
        if (other := self.other) is not None:
            self.other = None
            other()
            raise SnapshotFailed("the archive has gone")
        return super().put_file(path)


def test_a_try_succeeds_when_another_has_saved_the_work(host: Host, services: Services) -> None:
    host.provision()
    host.seal(EndReason.CANCELLED)
    store = host.snapshots._store = SavedByAnother(services, host.database)
    saved = []
    store.other = lambda: saved.append(host.snapshot())
    assert [host.snapshot()] == saved


def test_provisioning_heartbeats(host: Host) -> None:
    beats: list[tuple[object, ...]] = []
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *details: beats.append(details)
    environment.run(host.harness.provision_workspace, AttemptInput(attempt_id=ATTEMPT, limit_s=30))
    assert beats == [()]


def _run_until(host: Host, condition: Callable[[], bool], **details: bool) -> None:
    """Run the harness activity until the condition holds, then cancel it with these details."""
    environment = ActivityEnvironment()

    async def body() -> None:
        given = HarnessInput(attempt_id=ATTEMPT, limit_s=60)
        running = asyncio.ensure_future(environment.run(host.harness.run_harness, given))
        await asyncio.to_thread(wait_until, condition)
        environment.cancel(ActivityCancellationDetails(**details))
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(body())
