"""``python -m app.worker --boot FILE``: the workers of a run on one host.

Separate ``Worker`` objects over separate slots, so that no two-second activity waits behind hours
of harness.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

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
GRACE = timedelta(seconds=5)
"""Harnesses outlive the worker, so there is nothing long to wait for."""


async def serve(boot: WorkerBoot) -> None:
    """Run every worker until SIGTERM."""
    services = Services.model_validate(boot.services)
    temporal = await durable.connect(services.temporal_address, services.temporal_namespace)
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with AsyncExitStack() as stack:
        for worker in build(boot, services, temporal):
            await stack.enter_async_context(worker)
        logging.getLogger("app.worker").info("serving run %s", boot.run)
        await stop.wait()


def build(boot: WorkerBoot, services: Services, temporal: Client) -> list[Worker]:
    """The workers of one host, not yet running."""
    run, database = RunId(boot.run), connect(services.postgres_dsn, pool_size=16)
    decisions = DecisionActivities(database=database, host=boot.host)
    control = CellControlActivities(database=database, client=temporal)
    executions = ExecutionActivities(database=database)
    trajectories = TrajectoryActivities(database=database)
    harness = HarnessActivities(boot=boot, services=services, database=database)
    snapshots = SnapshotActivities(boot=boot, services=services, database=database)
    evaluator = EvaluatorActivities(boot=boot, services=services, database=database)
    return [
        _worker(
            temporal,
            control_queue(run),
            [
                decisions.load_plan,
                decisions.await_decision,
                decisions.finish_run,
                control.await_cell,
                control.command_cell,
            ],
            CONTROL_SLOTS,
            workflows=WORKFLOWS,
        ),
        _worker(
            temporal,
            short_queue(run),
            [
                executions.open_attempt,
                executions.fold_execution,
                executions.commit_group,
                trajectories.open_batch,
            ],
            SHORT_SLOTS,
        ),
        _worker(temporal, host_queue(run, boot.host), [harness.run_harness], boot.harness_slots),
        _worker(
            temporal,
            host_short_queue(run, boot.host),
            [harness.provision_workspace, harness.seal_attempt, snapshots.take_snapshot],
            SHORT_SLOTS,
        ),
        _worker(temporal, evaluate_queue(run), [evaluator.evaluate_snapshot], boot.evaluate_slots),
    ]


def _worker(
    temporal: Client,
    queue: str,
    activities: Sequence[Callable[..., Any]],
    slots: int,
    workflows: Sequence[type] = (),
) -> Worker:
    """One queue with its own slots and threads."""
    return Worker(
        temporal,
        task_queue=queue,
        workflows=workflows,
        activities=activities,
        activity_executor=ThreadPoolExecutor(slots, thread_name_prefix=queue),
        max_concurrent_activities=slots,
        max_cached_workflows=500,
        workflow_runner=runner(),
        graceful_shutdown_timeout=GRACE,
        max_heartbeat_throttle_interval=timedelta(seconds=5),
    )


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(read_boot(WorkerBoot, sys.argv)))


if __name__ == "__main__":
    main()
