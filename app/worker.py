"""``python -m app.worker --boot FILE``: the process that hosts a run's workflows and activities.

Every queue has a ``Worker`` with slots of its own, so that no two-second activity waits behind hours of
harness.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, NamedTuple

from temporalio.client import Client
from temporalio.worker import Worker

from activities.cells import CellControlActivities
from activities.decisions import DecisionActivities
from activities.evaluator import EvaluatorActivities
from activities.executions import ExecutionActivities
from activities.harness import HarnessActivities
from activities.snapshots import SnapshotActivities
from activities.trajectories import TrajectoryActivities
from db.session import connect
from gyre.contracts.boot import WorkerBoot, read_boot
from gyre.contracts.ids import (
    RunId,
    control_queue,
    evaluate_queue,
    host_queue,
    host_short_queue,
    short_queue,
)
from gyre.durable import client as durable
from gyre.settings import Services
from workflows.registry import WORKFLOWS, runner

SHORT_SLOTS = 8
CONTROL_SLOTS = 16
GRACE_PERIOD = timedelta(seconds=5)
"""Short, because harnesses outlive the worker and nothing else runs for long."""


class Queue(NamedTuple):
    """A task queue and what this process serves on it."""

    name: str
    slots: int
    """Activities that run at once."""
    activities: list[Callable[..., Any]]
    workflows: Sequence[type] = ()


def queues(boot: WorkerBoot, services: Services, temporal: Client) -> list[Queue]:
    """List the queues of one host: who serves what, and how much of it at once."""
    run, database = RunId(boot.run), connect(services.postgres_dsn, pool_size=16)
    decide = DecisionActivities(database=database, host=boot.host)
    cell = CellControlActivities(database=database, client=temporal)
    execution = ExecutionActivities(database=database)
    batch = TrajectoryActivities(database=database)
    harness = HarnessActivities(boot=boot, services=services, database=database)
    snapshot = SnapshotActivities(boot=boot, services=services, database=database)
    evaluator = EvaluatorActivities(boot=boot, services=services, database=database)

    control = [decide.load_plan, decide.await_decision, decide.finish_run, cell.await_cell, cell.command_cell]
    short = [execution.open_attempt, execution.fold_execution, execution.commit_group, batch.open_batch]
    sandbox = [harness.provision_workspace, harness.seal_attempt, snapshot.take_snapshot]
    return [
        Queue(control_queue(run), CONTROL_SLOTS, control, WORKFLOWS),
        Queue(short_queue(run), SHORT_SLOTS, short),
        Queue(host_queue(run, boot.host), boot.harness_slots, [harness.run_harness]),
        Queue(host_short_queue(run, boot.host), SHORT_SLOTS, sandbox),
        Queue(evaluate_queue(run), boot.evaluate_slots, [evaluator.evaluate_snapshot]),
    ]


def build_worker(temporal: Client, queue: Queue) -> Worker:
    """Build the worker of one queue, with threads for all its slots."""
    return Worker(
        temporal,
        task_queue=queue.name,
        workflows=queue.workflows,
        activities=queue.activities,
        activity_executor=ThreadPoolExecutor(queue.slots, thread_name_prefix=queue.name),
        max_concurrent_activities=queue.slots,
        max_cached_workflows=500,
        workflow_runner=runner(),
        graceful_shutdown_timeout=GRACE_PERIOD,
        # Requests to cancel arrive with the answers to heartbeats, so this bounds their delay.
        max_heartbeat_throttle_interval=timedelta(seconds=5),
    )


async def serve(boot: WorkerBoot) -> None:
    """Serve every queue until SIGTERM."""
    services = Services.model_validate(boot.services)
    temporal = await durable.connect(services.temporal_address, services.temporal_namespace)
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with AsyncExitStack() as stack:
        for queue in queues(boot, services, temporal):
            await stack.enter_async_context(build_worker(temporal, queue))
        logging.getLogger("app.worker").info("serving run %s", boot.run)
        await stop.wait()


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(read_boot(WorkerBoot, sys.argv)))


if __name__ == "__main__":
    main()
