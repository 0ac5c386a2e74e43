"""The harness of an attempt: provision its workspace, run it, seal the attempt."""

import asyncio
import time
from pathlib import Path

from temporalio import activity

from activities.heartbeats import HEARTBEAT_S, heartbeats_from_thread
from activities.milestones import Milestones
from activities.sandbox_inputs import sandbox_limits, task_folder
from db import attempts, executions, harnesses
from db.harnesses import TaskOfExecution
from db.session import Database, transaction
from gyre.contracts.boot import WorkerBoot, gateway_of
from gyre.contracts.errors import Fenced, ProvisionFailed
from gyre.contracts.ids import AttemptId, execution_of
from gyre.contracts.messages import (
    AttemptInput,
    HarnessInput,
    HarnessResult,
    ProvisionResult,
    SealInput,
    SealResult,
)
from gyre.contracts.tokens import attempt_token
from gyre.durable.activities import PROVISION_WORKSPACE, RUN_HARNESS, SEAL_ATTEMPT
from gyre.durable.failures import translated
from gyre.settings import Services
from sandbox import adapters, workspace
from sandbox.harness_process import (
    HarnessSpec,
    HarnessStatus,
    attempt_directory,
    kill,
    poll,
    start_or_attach,
)

SHORTEST_POLL_S, LONGEST_POLL_S, POLL_SHARE = 0.05, 0.5, 0.02
"""Period of polls of the supervisor's status file: a share of the harness's age, so that the end of a short
run is seen at once and a long run costs next to nothing."""


class HarnessActivities:
    """Activities on the host whose ``state_dir`` holds the attempts: re-attaching needs their files."""

    def __init__(self, *, boot: WorkerBoot, services: Services, database: Database) -> None:
        """``services`` is not used: every class of activities takes the same arguments."""
        self._database, self._boot = database, boot

    @activity.defn(name=PROVISION_WORKSPACE.name, no_thread_cancel_exception=True)
    @translated
    def provision_workspace(self, input: AttemptInput) -> ProvisionResult:
        """Make the attempt's workspace, once. Raises ProvisionFailed, and Fenced if the attempt is sealed."""
        attempt = AttemptId(input.attempt_id)
        with heartbeats_from_thread():
            environment = task_folder(self._open_task(attempt), ProvisionFailed) / "environment"
            done = workspace.provision(environment, self._directory(attempt), limit_s=input.limit_s)
        return ProvisionResult(num_files=done.num_files, num_bytes=done.num_bytes)

    @activity.defn(name=RUN_HARNESS.name)
    @translated
    async def run_harness(self, input: HarnessInput) -> HarnessResult:
        """Start the harness or attach to it, and return when it has ended.

        Its processes are killed here only if cancellation was requested. A worker that shuts down, or whose
        heartbeat came too late, leaves them alone: the next worker attaches.
        """
        attempt = AttemptId(input.attempt_id)
        directory, began = self._directory(attempt), time.monotonic()
        milestones = Milestones(
            self._database, attempt, lambda: activity.client().get_workflow_handle(execution_of(attempt))
        )
        try:
            status = await asyncio.to_thread(self._start, attempt, input.limit_s)
            while status.state != "exited":
                # Sent from this loop, not from a task: a loop that hangs must be noticed.
                activity.heartbeat()
                await milestones.signal_if_due()
                poll_s = min(LONGEST_POLL_S, max(SHORTEST_POLL_S, POLL_SHARE * (time.monotonic() - began)))
                status = await _next_status(directory, HEARTBEAT_S, poll_s)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and details.cancel_requested:
                await asyncio.to_thread(kill, directory)
            raise
        assert status.end_reason is not None
        return HarnessResult(
            end_reason=status.end_reason,
            exit_code=status.exit_code,
            seconds=status.seconds,
            failure=status.failure,
        )

    @activity.defn(name=SEAL_ATTEMPT.name, no_thread_cancel_exception=True)
    @translated
    def seal_attempt(self, input: SealInput) -> SealResult:
        """Refuse further writes, then kill every process of the attempt and return what it recorded."""
        attempt = AttemptId(input.attempt_id)
        directory = self._directory(attempt)
        with heartbeats_from_thread():
            with transaction(self._database) as session:
                attempts.seal(
                    session, attempt, input.end_reason, exit_code=input.exit_code, failure=input.failure
                )
            kill(directory)
            # It holds the attempt's token, which is void now.
            (directory / "spec.json").unlink(missing_ok=True)
            with transaction(self._database) as session:
                recorded = executions.call_totals(session, attempt)
        return SealResult(
            num_calls=recorded.num_calls,
            num_input_tokens=recorded.num_input_tokens,
            num_output_tokens=recorded.num_output_tokens,
            num_branches=recorded.num_branches,
        )

    def _start(self, attempt: AttemptId, limit_s: float) -> HarnessStatus:
        # Attaching needs neither the task's folder nor an open attempt.
        status = poll(self._directory(attempt))
        return start_or_attach(self._spec(attempt, limit_s)) if status.state == "absent" else status

    def _spec(self, attempt: AttemptId, limit_s: float) -> HarnessSpec:
        task = self._open_task(attempt)
        harness, gateway = task.resolved["harness"], gateway_of(attempt, self._boot.gateways)
        return adapters.render(
            adapters.load_adapter(harness["name"]),
            harness["options"],
            adapters.Launch(
                directory=self._directory(attempt),
                instruction=(Path(task.path) / "instruction.md").read_text(),
                token=attempt_token(task.secret, attempt),
                gateway_socket=gateway.socket,
                gateway_url=gateway.url,
                time_limit_s=limit_s,
                limits=sandbox_limits(task),
                context_tokens=task.resolved["model"]["context_tokens"],
                max_tokens=task.resolved["sampling"]["max_tokens"],
            ),
        )

    def _open_task(self, attempt: AttemptId) -> TaskOfExecution:
        """Return the attempt's task. Raises Fenced if the attempt is sealed."""
        with transaction(self._database) as session:
            if not harnesses.is_open(session, attempt):
                raise Fenced(f"{attempt} is sealed: nothing more can be started for it")
            return harnesses.task_of(session, execution_of(attempt))

    def _directory(self, attempt: AttemptId) -> Path:
        return attempt_directory(self._boot.state_dir, attempt)


async def _next_status(directory: Path, patience_s: float, poll_s: float) -> HarnessStatus:
    """Poll until the harness has ended, but for ``patience_s`` at most; return its status."""
    loop = asyncio.get_running_loop()
    until = loop.time() + patience_s
    while True:
        status = poll(directory)
        if status.state == "exited" or loop.time() >= until:
            return status
        await asyncio.sleep(poll_s)
