"""``python -m gpu_workers.supervisor --boot FILE``: the process that is a cell. It never imports torch.

An incarnation begins with an epoch minted in Postgres and ends with the first death among its processes. The
others are ended before the next incarnation begins.
"""

import asyncio
import logging
import signal
import sys
import time
from dataclasses import dataclass

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from activities.heartbeats import heartbeats
from db import cells, run_state, waits
from db.session import Database, connect, transaction
from gpu_workers.children import first_death
from gpu_workers.incarnation import CellIncarnation
from gyre.contracts.boot import CellBoot, read_boot
from gyre.contracts.errors import EngineFailed, GyreError
from gyre.contracts.ids import CellId, RunId, cell_queue, run_of
from gyre.contracts.messages import (
    CellCommand,
    CellState,
    PublishInput,
    PublishResult,
    TrainInput,
    TrainResult,
)
from gyre.durable import client as durable
from gyre.durable.activities import ENTER_ROLE, PUBLISH_WEIGHTS, TRAIN_BATCH
from gyre.durable.failures import translated
from gyre.settings import RunFile, Services

log = logging.getLogger("gyre.cell")
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 30.0
SILENCE_LIMIT_S, POLL_S = 60.0, 10.0


async def supervise(boot: CellBoot) -> None:
    """Run one incarnation after another until SIGTERM."""
    services = Services.model_validate(boot.services)
    database = connect(services.postgres_dsn, pool_size=2)
    temporal = await durable.connect(services.temporal_address, services.temporal_namespace)
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    backoff_s = FIRST_BACKOFF_S
    while not stop.is_set():
        served = await _run_incarnation(boot, database, temporal, stop)
        backoff_s = FIRST_BACKOFF_S if served else min(2 * backoff_s, LONGEST_BACKOFF_S)
        if not stop.is_set():
            await asyncio.sleep(backoff_s)
    database.dispose()


async def _run_incarnation(boot: CellBoot, database: Database, temporal: Client, stop: asyncio.Event) -> bool:
    """Run one incarnation until it ends. Returns True if the cell served."""
    epoch, config = await asyncio.to_thread(_mint_epoch, boot, database)
    incarnation = CellIncarnation(boot, config, database, epoch)
    try:
        await incarnation.begin()
        log.info("%s serves, epoch %d", boot.cell, epoch)
        await _work(boot, database, temporal, incarnation, stop)
    except (GyreError, OSError) as error:
        log.error("%s epoch %d: %s", boot.cell, epoch, error)
        await asyncio.to_thread(_record_failure, boot, database, str(error))
        return False
    finally:
        await incarnation.end()
    return True


@dataclass(frozen=True)
class CellActivities:
    """Carry commands out, on the queue of one incarnation: ``<run>/cell/<c>/<epoch>``."""

    database: Database
    processes: CellIncarnation

    @activity.defn(name=ENTER_ROLE.name)
    @translated
    async def enter_role(self, input: CellCommand) -> CellState:
        """Do what the role needs, then commit the transition under the epoch fence."""
        async with heartbeats():
            await self.processes.enter(input)
        return await asyncio.to_thread(self._commit_role, input)

    @activity.defn(name=TRAIN_BATCH.name)
    @translated
    async def train_batch(self, input: TrainInput) -> TrainResult:
        """Train a stored batch. A version that is already durable is returned as it is."""
        async with heartbeats():
            return await self.processes.train(input)

    @activity.defn(name=PUBLISH_WEIGHTS.name)
    @translated
    async def publish_weights(self, input: PublishInput) -> PublishResult:
        """Move the weights to the cell's engine and record in Postgres that it serves them."""
        async with heartbeats():
            result = await self.processes.publish(input)
        await asyncio.to_thread(self._commit_version, input, result)
        return result

    def _commit_role(self, input: CellCommand) -> CellState:
        with transaction(self.database) as session:
            return cells.enter(session, input)

    def _commit_version(self, input: PublishInput, result: PublishResult) -> None:
        with transaction(self.database) as session:
            if result.version != input.version:
                raise EngineFailed(f"the engine serves version {result.version}, not {input.version}")
            cells.serve_version(session, CellId(input.cell_id), input.epoch, result.version)
            run_state.mark_published(session, run_of(input.cell_id), result.version, result.num_bytes)


async def _work(
    boot: CellBoot, database: Database, temporal: Client, incarnation: CellIncarnation, stop: asyncio.Event
) -> None:
    """Run commands for this epoch until a process ends or falls silent, or the cell must stop."""
    activities = CellActivities(database=database, processes=incarnation)
    worker = Worker(
        temporal,
        task_queue=cell_queue(CellId(boot.cell), incarnation.epoch),
        activities=[activities.enter_role, activities.train_batch, activities.publish_weights],
        max_concurrent_activities=4,
        identity=f"{boot.cell}@{boot.host}",
    )
    reasons = (first_death(incarnation.children), first_silence(incarnation), _stopped(stop))
    ends = [asyncio.create_task(reason) for reason in reasons]
    async with worker:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        log.warning("%s epoch %d ends: %s", boot.cell, incarnation.epoch, next(iter(done)).result())
    for end in ends:
        end.cancel()


async def first_silence(incarnation: CellIncarnation, limit_s: float = SILENCE_LIMIT_S) -> str:
    """Wait until a process has not answered for ``limit_s``: a frozen process is treated as dead."""
    answered_at = time.monotonic()
    while (silent_s := time.monotonic() - answered_at) < limit_s:
        await asyncio.sleep(POLL_S)
        if await incarnation.answers(POLL_S):
            answered_at = time.monotonic()
    return f"engine or trainer has not answered for {silent_s:.0f} s"


async def _stopped(stop: asyncio.Event) -> str:
    await stop.wait()
    return "the supervisor received SIGTERM or SIGINT"


def _mint_epoch(boot: CellBoot, database: Database) -> tuple[int, RunFile]:
    with transaction(database) as session:
        config = RunFile.model_validate(run_state.newest_config(session, boot.run))
        index = int(boot.cell.rsplit("/", 1)[1])
        cells.create(session, RunId(config.run.name), index, config.schedule.max_concurrent)
        return cells.mint_epoch(session, CellId(boot.cell), boot.host), config


def _record_failure(boot: CellBoot, database: Database, reason: str) -> None:
    """Record that a cell which cannot start is waiting, and why, where people can see it."""
    with transaction(database) as session:
        waits.begin(
            session,
            run=boot.run,
            owner=boot.cell,
            waits_for=f"an incarnation that serves; the last one failed: {reason[:300]}",
            expected_s=LONGEST_BACKOFF_S,
        )


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(supervise(read_boot(CellBoot, sys.argv)))


if __name__ == "__main__":
    main()
