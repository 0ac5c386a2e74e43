"""``python -m gpu_workers.supervisor --boot FILE``: the process that is a cell. It never imports torch.

A life begins with an epoch minted in Postgres and ends with the first death among its processes; the
others are ended before the next life begins.
"""

import asyncio
import logging
import signal
import sys
import time

from temporalio.client import Client
from temporalio.worker import Worker

from activities.cells import CellActivities
from db import cells, run_state, waits
from db.session import Database, connect, transaction
from gpu_workers.children import first_death
from gpu_workers.incarnation import CellIncarnation
from gyre.contracts.boot import CellBoot, read_boot
from gyre.contracts.errors import GyreError
from gyre.contracts.ids import CellId, RunId, cell_queue
from gyre.durable import client as durable
from gyre.settings import RunFile, Services

log = logging.getLogger("gyre.cell")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
SILENCE_S, LOOK_S = 60.0, 10.0


async def supervise(boot: CellBoot) -> None:
    """Live after life until SIGTERM."""
    services = Services.model_validate(boot.services)
    database = connect(services.postgres_dsn, pool_size=2)
    temporal = await durable.connect(services.temporal_address, services.temporal_namespace)
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    pause_s = FIRST_PAUSE_S
    while not stop.is_set():
        served = await _one_life(boot, database, temporal, stop)
        pause_s = FIRST_PAUSE_S if served else min(2 * pause_s, LONGEST_PAUSE_S)
        if not stop.is_set():
            await asyncio.sleep(pause_s)
    database.dispose()


async def _one_life(boot: CellBoot, database: Database, temporal: Client, stop: asyncio.Event) -> bool:
    """True if the cell served before the life ended."""
    epoch, config = await asyncio.to_thread(_mint, boot, database)
    life = CellIncarnation(boot, config, database, epoch)
    try:
        await life.begin()
        log.info("%s serves, epoch %d", boot.cell, epoch)
        await _work(boot, database, temporal, life, stop)
    except (GyreError, OSError) as error:
        log.error("%s epoch %d: %s", boot.cell, epoch, error)
        await asyncio.to_thread(_note_failure, boot, database, str(error))
        return False
    finally:
        await life.end()
    return True


async def _work(
    boot: CellBoot, database: Database, temporal: Client, life: CellIncarnation, stop: asyncio.Event
) -> None:
    """Take commands of this life until a process dies or the cell is told to stop."""
    activities = CellActivities(database=database, processes=life)
    worker = Worker(
        temporal,
        task_queue=cell_queue(CellId(boot.cell), life.epoch),
        activities=[activities.enter_role, activities.train_batch, activities.publish_weights],
        max_concurrent_activities=4,
        identity=f"{boot.cell}@{boot.host}",
    )
    reasons = (first_death(life.children), first_silence(life), _told(stop))
    ends = [asyncio.create_task(reason) for reason in reasons]
    async with worker:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        log.warning("%s epoch %d ends: %s", boot.cell, life.epoch, next(iter(done)).result())
    for end in ends:
        end.cancel()


async def first_silence(life: CellIncarnation, limit_s: float = SILENCE_S) -> str:
    """Wait until a process has not answered for ``limit_s``: frozen is as good as dead."""
    heard = time.monotonic()
    while (silent_s := time.monotonic() - heard) < limit_s:
        await asyncio.sleep(LOOK_S)
        if await life.answers(LOOK_S):
            heard = time.monotonic()
    return f"engine or trainer has not answered for {silent_s:.0f} s"


async def _told(stop: asyncio.Event) -> str:
    await stop.wait()
    return "the supervisor was told to stop"


def _mint(boot: CellBoot, database: Database) -> tuple[int, RunFile]:
    with transaction(database) as session:
        config = RunFile.model_validate(run_state.newest_config(session, boot.run))
        index = int(boot.cell.rsplit("/", 1)[1])
        cells.create(session, RunId(config.run.name), index, config.schedule.max_concurrent)
        return cells.mint_epoch(session, CellId(boot.cell), boot.host), config


def _note_failure(boot: CellBoot, database: Database, reason: str) -> None:
    """A cell that cannot start is a wait that people can see, with its reason."""
    with transaction(database) as session:
        waits.begin(
            session,
            run=boot.run,
            owner=boot.cell,
            waits_for=f"a life that serves; the last one: {reason[:300]}",
            expected_s=LONGEST_PAUSE_S,
        )


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(supervise(read_boot(CellBoot, sys.argv)))


if __name__ == "__main__":
    main()
