"""The keeper: one daemon for each state directory; it keeps the services and the processes of runs alive.

``python -m app.stack.keeper --state-dir DIR``. It is started by ``ensure_up`` and ends by ``down``.
Killed itself, it leaves everything running, and the next one adopts that.
"""

import argparse
import asyncio
import fcntl
import json
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from app.stack import orphans
from app.stack.control import LINE_BYTES, ProcessStatus, Status
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
from gyre.settings.services import Services

RUN_WATCH_S = 5.0
"""How often the keeper looks whether a run has ended and its processes can go."""
PORT_S = 3.0
"""For what an engine or a gateway that was killed leaves behind to let go of its port."""


class Keeper:
    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._ledger = Ledger(state.processes)
        self._policy = RestartPolicy()
        self._children: dict[str, KeptProcess] = {}
        self._turn = asyncio.Lock()
        """Held by whoever starts or stops something."""
        self._engines: dict[str, Database] = {}
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Serve until told to stop; then nothing that was started here is left."""
        path = self._state.control_socket
        server = await asyncio.start_unix_server(self._serve, path=str(path), limit=LINE_BYTES)
        path.chmod(0o600)
        watch = asyncio.create_task(self._watch())
        await self._stopped.wait()
        watch.cancel()
        server.close()
        path.unlink(missing_ok=True)

    # Starting ---------------------------------------------------------------------------------

    async def start_services(self) -> None:
        """Return when all three serve and the database is migrated. Raises BadInput otherwise."""
        async with self._turn:
            record = await asyncio.to_thread(ensure_services_record, self._state)
            await asyncio.to_thread(initialise, self._state.postgres, record.postgres_password)
            specs = [build(self._state, record) for build in (postgres_spec, temporal_spec, s3_spec)]
            await _all(self._ensure(spec) for spec in specs)
            await asyncio.to_thread(_prepare_database, record)
            for wanted in await asyncio.to_thread(read_runs, self._state):
                if wanted.wanted and not await self._has_ended(wanted):
                    await self._start_processes(wanted)

    async def _ensure(self, spec: ProcessSpec) -> None:
        child = self._children.get(spec.name)
        if child is not None:
            return await child.wait_up()
        child = self._child(spec)
        try:
            await child.start()
        except BadInput:
            del self._children[spec.name]
            raise

    def _child(self, spec: ProcessSpec) -> KeptProcess:
        child = KeptProcess(spec, self._ledger, self._policy)
        self._children[spec.name] = child
        return child

    async def _start_processes(self, record: RunRecord) -> None:
        """Start what does not run yet, and restart what was started differently."""
        specs = await asyncio.to_thread(run_specs, self._state, record)
        changed = [spec for spec in specs if not self._is_kept(spec)]
        kept = (self._children.get(spec.name) for spec in changed)
        await asyncio.gather(*(child.stop() for child in kept if child is not None))
        for spec in changed:
            self._child(spec).start_later()

    def _is_kept(self, spec: ProcessSpec) -> bool:
        child = self._children.get(spec.name)
        return child is not None and child.spec.fingerprint == spec.fingerprint

    async def _require_ports(self, record: RunRecord) -> None:
        """Raises BadInput if another process has a port of a process that does not run here."""
        for name, port in record.ports().items():
            child = self._children.get(name)
            if self._ledger.alive(name) is None and (child is None or child.state is not KeptState.UP):
                await _until_free(port)
                require_free(port, name)

    # Ending -----------------------------------------------------------------------------------

    async def _stop_processes(self, run: str) -> None:
        names = [name for name in self._children if name.startswith(f"{run}/")]
        await asyncio.gather(*(self._children.pop(name).stop() for name in names))
        await asyncio.to_thread(lambda: orphans.end_all(orphans.leftovers(self._state.root, run), 5.0))

    async def stop_everything(self) -> None:
        async with self._turn:
            await asyncio.gather(*(self._stop_processes(run) for run in self._runs()))
            for engine in self._engines.values():
                engine.dispose()
            await asyncio.gather(*(child.stop() for child in self._children.values()))
            self._children.clear()
            await asyncio.to_thread(self._end_leftovers)
        self._stopped.set()

    def _end_leftovers(self) -> None:
        """What a killed keeper left and nobody adopted, and harnesses that hid in the background."""
        for process in self._ledger.drain():
            orphans.end_all([process], 20.0, first=signal.SIGINT)  # Postgres' fast shutdown
        orphans.end_all(orphans.leftovers(self._state.root), 5.0)

    def _runs(self) -> set[str]:
        return {name.partition("/")[0] for name in self._children if "/" in name}

    # Watching ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(RUN_WATCH_S)
            async with self._turn:
                with _told():
                    orphans.reap_adopted({pid for child in self._children.values() for pid in child.pids()})
                for run in self._runs():
                    with _told():
                        await self._end_if_over(run)

    async def _end_if_over(self, run: str) -> None:
        record = await asyncio.to_thread(read_run, self._state, run)
        if record is not None and await self._has_ended(record):
            await self._stop_processes(run)

    async def _has_ended(self, record: RunRecord) -> bool:
        """Whether Postgres says so; when it does not answer, the run goes on."""
        try:
            status = await asyncio.to_thread(self._status_of, record)
        except SQLAlchemyError:
            return False
        return status in run_state.TERMINAL

    def _status_of(self, record: RunRecord) -> RunStatus | None:
        dsn = record.services.postgres_dsn
        if dsn not in self._engines:
            self._engines[dsn] = connect(dsn, pool_size=1)
        with transaction(self._engines[dsn]) as session:
            row = runs.find(session, record.run)
            # Its last workflow task may still be under way for a moment.
            return RunStatus(row.status) if row and runs.ended_for_s(session, record.run) > 10 else None

    # Commands ---------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request: dict[str, Any] = json.loads(await reader.readline())
            answer = await self._answer(request.pop("command"), request)
            writer.write(json_line(answer))
            await writer.drain()
        except (ConnectionError, json.JSONDecodeError):
            return  # the client went away, or only looked whether somebody listens
        finally:
            writer.close()

    async def _answer(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        handlers: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "status": self._do_status,
            "start_services": self._do_start_services,
            "start_run": self._do_start_run,
            "stop_run": self._do_stop_run,
            "stop": self._do_stop,
        }
        try:
            return {"result": await handlers[command](**arguments)}
        except BadInput as error:
            return {"error": str(error)}
        except Exception as error:  # the boundary of the daemon: one bad request must not end it
            traceback.print_exc()
            return {"error": f"{command} failed: {error}"}

    async def _do_status(self) -> dict[str, Any]:
        processes = [ProcessStatus.model_validate(child.describe()) for child in self._children.values()]
        return Status(keeper_pid=os.getpid(), processes=processes).model_dump()

    async def _do_start_services(self) -> dict[str, Any]:
        await self.start_services()
        return {}

    async def _do_start_run(
        self, run: str, services: dict[str, Any], revision: int, **counts: int
    ) -> dict[str, Any]:
        """``counts`` are harness_slots, evaluate_slots and num_gateways."""
        addresses = Services.model_validate(services)
        async with self._turn:
            earlier = await asyncio.to_thread(read_run, self._state, run)
            if earlier is not None:
                await self._require_ports(earlier)
            record = await asyncio.to_thread(ensure_run, self._state, run, addresses, revision, **counts)
            await self._start_processes(record)
        return {}

    async def _do_stop_run(self, run: str) -> dict[str, Any]:
        async with self._turn:
            record = await asyncio.to_thread(read_run, self._state, run)
            if record is not None:
                write_run(self._state, record.model_copy(update={"wanted": False}))
            await self._stop_processes(run)
        return {}

    async def _do_stop(self) -> dict[str, Any]:
        await self.stop_everything()
        return {}


async def _all(steps: Iterable[Awaitable[None]]) -> None:
    """Await every step to its end, then raise the first failure: none is left half done."""
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


@contextmanager
def _told() -> Generator[None]:
    """Whatever escapes the block is written to the log and goes no further: the next round tries again."""
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
    """Hold the lock for life: a second keeper of the same directory ends at once."""
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
            os._exit(0)  # whoever started us waits for this; the lock lives on in the child
        os.setsid()
        orphans.become_subreaper()
        state.control_socket.unlink(missing_ok=True)
        asyncio.run(_main(state))


if __name__ == "__main__":
    main()
