"""The daemon that keeps services and runs alive; our own, because it adopts what survived its kill -9.

``python -m app.stack.keeper --state-dir DIR``, one per state directory, started by ``ensure_up`` and ended by
``down``. A keeper that is killed leaves everything running, and the next one adopts it. Process managers that
a user can run without root (supervisord and its like) lose their processes when they are killed.
"""

import argparse
import asyncio
import fcntl
import json
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from app.stack import orphans
from app.stack.control import (
    COMMANDS,
    LINE_BYTES,
    KeeperCommand,
    ProcessStatus,
    ReadStatus,
    StartRun,
    StartServices,
    Status,
    StopEverything,
    StopRun,
)
from app.stack.files import StateDir
from app.stack.kept_process import KeptProcess, KeptState
from app.stack.ledger import Ledger
from app.stack.postgres import initialise, postgres_spec
from app.stack.restart import RestartPolicy
from app.stack.run_record import RunRecord, ensure_run, read_run, read_runs, write_run
from app.stack.run_specs import run_specs
from app.stack.s3 import s3_spec
from app.stack.services_record import DATABASE, ServicesRecord, ensure_services_record
from app.stack.spec import ProcessSpec
from app.stack.temporal import temporal_spec
from db import migrate, run_state, runs
from db.databases import ensure_database
from db.session import Database, connect, transaction
from gyre.contracts.errors import BadInput
from gyre.contracts.json_text import json_line
from gyre.contracts.lifecycle import RunStatus
from gyre.host.ports import is_free, require_free
from gyre.settings.problems import first_problem

RUN_WATCH_S = 5.0
"""Interval at which the keeper checks whether a run has ended and its processes can go."""
PORT_S = 3.0
"""Time for the remains of a killed engine or gateway to release its port."""


class Keeper:
    """Everything that one daemon keeps alive, and the commands that change it."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._ledger = Ledger(state.processes)
        self._policy = RestartPolicy()
        self._kept: dict[str, KeptProcess] = {}
        self._turn = asyncio.Lock()
        """Held while something is started or stopped."""
        self._databases: dict[str, Database] = {}
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Serve until asked to stop; then nothing that was started here is left."""
        path = self._state.control_socket
        server = await asyncio.start_unix_server(self._serve, path=str(path), limit=LINE_BYTES)
        path.chmod(0o600)
        watch = asyncio.create_task(self.watch(RUN_WATCH_S))
        await self._stopped.wait()
        watch.cancel()
        server.close()
        path.unlink(missing_ok=True)

    # Starting ---------------------------------------------------------------------------------

    def keep(self, spec: ProcessSpec) -> KeptProcess:
        """Enter a process into the list of those that are kept; the caller starts it."""
        self._kept[spec.name] = process = KeptProcess(spec, self._ledger, self._policy)
        return process

    async def start_services(self) -> None:
        """Return when all three serve and the database is migrated. Raises BadInput otherwise."""
        async with self._turn:
            record = await asyncio.to_thread(ensure_services_record, self._state)
            await asyncio.to_thread(initialise, self._state.postgres, record.postgres_password)
            specs = [build(self._state, record) for build in (postgres_spec, temporal_spec, s3_spec)]
            await _all(self._ensure(spec) for spec in specs)
            await asyncio.to_thread(_prepare_database, record)
            for run in await asyncio.to_thread(read_runs, self._state):
                if run.wanted and not await self._has_ended(run):
                    await self._start_processes(run)

    async def _ensure(self, spec: ProcessSpec) -> None:
        """Return when the service serves, started now if it is not kept yet."""
        if (process := self._kept.get(spec.name)) is not None:
            return await process.wait_up()
        try:
            await self.keep(spec).start()
        except BadInput:
            del self._kept[spec.name]
            raise

    async def _start_run(self, command: StartRun) -> None:
        async with self._turn:
            earlier = await asyncio.to_thread(read_run, self._state, command.run)
            if earlier is not None:
                await self._require_ports(earlier)
            record = await asyncio.to_thread(
                ensure_run,
                self._state,
                command.run,
                command.services,
                command.revision,
                command.harness_slots,
                command.evaluate_slots,
                command.num_gateways,
            )
            await self._start_processes(record)

    async def _start_processes(self, record: RunRecord) -> None:
        """Start what does not run yet, and restart what was started from another fingerprint."""
        specs = await asyncio.to_thread(run_specs, self._state, record)
        current = {name: process.spec.fingerprint for name, process in self._kept.items()}
        changed = [spec for spec in specs if current.get(spec.name) != spec.fingerprint]
        replaced = (self._kept.get(spec.name) for spec in changed)
        await asyncio.gather(*(process.stop() for process in replaced if process is not None))
        for spec in changed:
            self.keep(spec).start_later()

    async def _require_ports(self, record: RunRecord) -> None:
        """Raise BadInput if another process has a port of a process that does not run here."""
        for name, port in record.ports().items():
            process = self._kept.get(name)
            if self._ledger.alive(name) is None and (process is None or process.state is not KeptState.UP):
                await _until_free(port)
                require_free(port, name)

    # Stopping ---------------------------------------------------------------------------------

    async def _stop_run(self, run: str) -> None:
        async with self._turn:
            record = await asyncio.to_thread(read_run, self._state, run)
            if record is not None:
                write_run(self._state, record.model_copy(update={"wanted": False}))
            await self._stop_processes(run)

    async def _stop_processes(self, run: str) -> None:
        names = [name for name in self._kept if name.startswith(f"{run}/")]
        await asyncio.gather(*(self._kept.pop(name).stop() for name in names))
        await asyncio.to_thread(lambda: orphans.end_all(orphans.leftovers(self._state.root, run), 5.0))

    async def stop_everything(self) -> None:
        """Stop runs, then services, then whatever else was started under this state directory."""
        async with self._turn:
            await asyncio.gather(*(self._stop_processes(run) for run in self._runs()))
            for database in self._databases.values():
                database.dispose()
            await asyncio.gather(*(process.stop() for process in self._kept.values()))
            self._kept.clear()
            await asyncio.to_thread(self._end_leftovers)
        self._stopped.set()

    def _end_leftovers(self) -> None:
        """End what a killed keeper left and no keeper adopted, and harnesses in sessions of their own."""
        for process in self._ledger.drain():
            orphans.end_all([process], 20.0, first=signal.SIGINT)  # Postgres' fast shutdown
        orphans.end_all(orphans.leftovers(self._state.root), 5.0)

    def _runs(self) -> set[str]:
        return {name.partition("/")[0] for name in self._kept if "/" in name}

    # Watching ---------------------------------------------------------------------------------

    async def watch(self, interval_s: float) -> None:
        """Reap orphans and stop the processes of runs that have ended, until cancelled.

        An error is logged and ends nothing: the next round tries again.
        """
        while True:
            await asyncio.sleep(interval_s)
            async with self._turn:
                with _logged():
                    orphans.reap_orphans({pid for process in self._kept.values() for pid in process.pids()})
                for run in self._runs():
                    with _logged():
                        record = await asyncio.to_thread(read_run, self._state, run)
                        if record is not None and await self._has_ended(record):
                            await self._stop_processes(run)

    async def _has_ended(self, record: RunRecord) -> bool:
        """Return whether Postgres says so; while it does not answer, the run goes on."""
        try:
            status = await asyncio.to_thread(self._status_of, record)
        except SQLAlchemyError:
            return False
        return status in run_state.TERMINAL

    def _status_of(self, record: RunRecord) -> RunStatus | None:
        dsn = record.services.postgres_dsn
        if dsn not in self._databases:
            self._databases[dsn] = connect(dsn, pool_size=1)
        with transaction(self._databases[dsn]) as session:
            row = runs.find(session, record.run)
            # For a moment after its end the run's last workflow task may still be under way.
            return RunStatus(row.status) if row and runs.ended_for_s(session, record.run) > 10 else None

    # Commands ---------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            writer.write(json_line(await self._answer(request)))
            await writer.drain()
        except (ConnectionError, json.JSONDecodeError):
            return  # the client went away, or only checked whether a keeper listens
        finally:
            writer.close()

    async def _answer(self, request: object) -> dict[str, Any]:
        try:
            command = COMMANDS.validate_python(request)
        except ValidationError as error:
            return {"error": f"the keeper does not understand a command: {first_problem(error)}"}
        try:
            return {"result": await self._execute(command)}
        except BadInput as error:
            return {"error": str(error)}
        except Exception as error:  # the boundary of the daemon: one bad request must not end it
            traceback.print_exc()
            return {"error": f"{command.command} failed: {error}"}

    async def _execute(self, command: KeeperCommand) -> dict[str, Any]:
        match command:
            case ReadStatus():
                processes = [ProcessStatus.model_validate(each.describe()) for each in self._kept.values()]
                return Status(keeper_pid=os.getpid(), processes=processes).model_dump()
            case StartServices():
                await self.start_services()
            case StartRun():
                await self._start_run(command)
            case StopRun():
                await self._stop_run(command.run)
            case StopEverything():
                await self.stop_everything()
        return {}


async def _all(steps: Iterable[Awaitable[None]]) -> None:
    """Await every step to its end, then raise the first failure, so that no step is left half done."""
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


@contextmanager
def _logged() -> Generator[None]:
    """Write an exception of the block to the log and suppress it."""
    try:
        yield
    except Exception:  # one run's trouble must not end the watch over the others
        traceback.print_exc()


async def _until_free(port: int) -> None:
    """Return when the port is free, or after ``PORT_S``."""
    try:
        async with asyncio.timeout(PORT_S):
            while not is_free(port):
                await asyncio.sleep(0.1)
    except TimeoutError:
        return


def _prepare_database(record: ServicesRecord) -> None:
    try:
        ensure_database(record.postgres_dsn("postgres"), DATABASE)
        migrate.upgrade(record.postgres_dsn(DATABASE))
    except (SQLAlchemyError, psycopg.Error) as error:
        raise BadInput(f"the database could not be migrated: {error}") from error


async def _main(state: StateDir) -> None:
    keeper = Keeper(state)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: loop.create_task(keeper.stop_everything()))
    await keeper.run()


def main() -> None:
    """Run the keeper while holding its lock: a second keeper of the same directory ends at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    arguments = parser.parse_args()
    state = StateDir(arguments.state_dir)
    with state.lock.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(0)
        if os.fork() != 0:
            os._exit(0)  # the starting process waits for this; the child keeps the lock
        os.setsid()
        orphans.become_subreaper()
        state.control_socket.unlink(missing_ok=True)
        asyncio.run(_main(state))


if __name__ == "__main__":
    main()
