"""``python -m gateway --boot FILE``: the model endpoint of one run, on a port and a Unix socket."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from db import calls, run_state
from db.session import connect, transaction
from gateway.app import App
from gateway.clock import Clock
from gateway.engines import Engines
from gateway.recorder import Recorder
from gateway.rendering import Renderer
from gateway.service import CallSettings, Service
from gateway.store import Store
from gyre.contracts.boot import GatewayBoot, read_boot
from gyre.contracts.ids import RunId
from gyre.settings.harnesses import harness_facts

STORE_THREADS = 8
SWITCH_INTERVAL_S = 0.0005
"""Python's own 5 ms would be half of what the gateway may add to a call."""
GARBAGE_THRESHOLDS = (100_000, 50, 100)
"""A request is thousands of small objects that die by themselves, and conversations live for hours: Python's
own thresholds walk through all of them again and again in the middle of calls."""
BACKLOG = 2048
SHUTDOWN_S = 5
"""Harnesses come back for what is cut off, so a stop does not wait for calls."""


async def serve(boot: GatewayBoot) -> None:
    """Serve until SIGTERM or SIGINT. Raises BadInput when the run or its model cannot be read."""
    async with running(boot) as app:
        await server(app).serve(sockets=listening_sockets(boot))


@contextlib.asynccontextmanager
async def running(boot: GatewayBoot) -> AsyncGenerator[App]:
    """The application with everything behind it, until the block ends."""
    run = RunId(boot.run)
    database = connect(boot.services["postgres_dsn"], pool_size=STORE_THREADS, pre_ping=False)
    with transaction(database) as session:
        secret, config = calls.run_secret(session, run), run_state.newest_config(session, run)
    model, clock = Path(config["model"]["path"]), Clock()
    store = Store(database, hold_s=boot.hold_s, num_threads=STORE_THREADS, clock=clock)
    engines = Engines(run, store, clock, hold_s=boot.hold_s, read_timeout_s=boot.engine_read_s)
    recorder = Recorder(store, f"{boot.host}:{boot.port}")
    service = Service(store, engines, recorder, Renderer(model), call_settings(config), secret, clock)
    leases = asyncio.create_task(recorder.renew_for_ever())
    try:
        yield App(service, model, boot.ping_s)
    finally:
        leases.cancel()
        await asyncio.wait([leases])
        await service.close()
        await store.idle()
        store.close()
        database.dispose()


def call_settings(config: dict[str, Any]) -> CallSettings:
    """The part of the resolved run file that concerns calls."""
    sampling, limits = config["sampling"], config["limits"]
    harness = harness_facts(config["harness"]["name"])
    return CallSettings(
        temperature=sampling["temperature"],
        top_p=sampling["top_p"],
        top_k=sampling["top_k"],
        max_tokens=sampling["max_tokens"],
        context_tokens=config["model"]["context_tokens"],
        max_calls=limits["calls"],
        max_concurrent_calls=limits["concurrent_calls"],
        max_body_bytes=limits["body_bytes"],
        roles=harness.roles,
        early_start=harness.early_start,
        # A run that was recorded before there was this section has none.
        live=harness.early_start and config.get("gateway", {}).get("live", False),
    )


def server(app: App) -> uvicorn.Server:
    """The HTTP server of the application; it is not running yet."""
    # No access log: the token may stand in the URL.
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        # Harnesses that try a websocket first get 405 at once, whatever is installed here.
        ws="none",
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    return uvicorn.Server(config)


def listening_sockets(boot: GatewayBoot) -> list[socket.socket]:
    """The port and the Unix socket; one server answers both."""
    return [_port(boot.port), _unix_socket(Path(boot.socket))]


def _port(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # A restarted gateway must have its old port at once.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(BACKLOG)
    return listening


def _unix_socket(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    # Sandboxes connect under users of their own; the attempt token is what lets them in.
    os.chmod(path, 0o666)
    listening.listen(BACKLOG)
    return listening


def main() -> None:
    """Serve the run that the boot file names, until a signal."""
    boot = read_boot(GatewayBoot, sys.argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    # The threads that talk to Postgres need the interpreter for microseconds: the event loop lends it soon.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    # uvicorn raises the signal again when it has stopped; then there is still a record to write.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    uvloop.run(serve(boot))


if __name__ == "__main__":
    main()
