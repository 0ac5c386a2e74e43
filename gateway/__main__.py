"""The gateway process, ``python -m gateway --boot FILE``: serves one run on a port and a Unix socket."""

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
"""Python's default of 5 ms would be half of what the gateway may add to a call."""
GARBAGE_THRESHOLDS = (100_000, 50, 100)
"""A request makes thousands of small objects that reference counting frees, and conversations live for hours.
With Python's default thresholds, the collector would walk all of them again and again during calls."""
BACKLOG = 2048
SHUTDOWN_S = 5
"""Grace period for calls under way. It is short because harnesses retry calls that are cut off."""


async def serve(boot: GatewayBoot) -> None:
    """Serve until SIGTERM or SIGINT. Raises BadInput when the run or its model cannot be read."""
    async with running(boot) as app:
        await server(app).serve(sockets=listening_sockets(boot))


@contextlib.asynccontextmanager
async def running(boot: GatewayBoot) -> AsyncGenerator[App]:
    """Yield the application, and close everything behind it when the block ends."""
    run = RunId(boot.run)
    database = connect(boot.services["postgres_dsn"], pool_size=STORE_THREADS, pre_ping=False)
    with transaction(database) as session:
        secret, config = calls.run_secret(session, run), run_state.newest_config(session, run)
    model = Path(config["model"]["path"])
    store = Store(database, hold_s=boot.hold_s, num_threads=STORE_THREADS)
    engines = Engines(run, store, hold_s=boot.hold_s, read_timeout_s=boot.engine_read_s)
    recorder = Recorder(store, f"{boot.host}:{boot.port}")
    service = Service(store, engines, recorder, Renderer(model), call_settings(config), secret)
    leases = asyncio.create_task(recorder.renew_forever())
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
    """Return the part of the resolved run file that concerns calls."""
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
        # Runs recorded before this section existed have none.
        live=harness.early_start and config.get("gateway", {}).get("live", False),
    )


def server(app: App) -> uvicorn.Server:
    """Build the HTTP server of the application; it is not running yet."""
    # No access log: URLs may contain the token.
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        # Harnesses that try a websocket first get 405 at once, whether or not a library for it is installed.
        ws="none",
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    return uvicorn.Server(config)


def listening_sockets(boot: GatewayBoot) -> list[socket.socket]:
    """Open the port and the Unix socket; one server answers both."""
    port = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # A restarted gateway must get its old port at once.
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("127.0.0.1", boot.port))
    port.listen(BACKLOG)
    path = Path(boot.socket)
    path.unlink(missing_ok=True)
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unix.bind(str(path))
    # Sandboxes connect under users of their own; only the attempt token lets them in.
    os.chmod(path, 0o666)
    unix.listen(BACKLOG)
    return [port, unix]


def main() -> None:
    """Serve the run that the boot file names, until a signal."""
    boot = read_boot(GatewayBoot, sys.argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    # Threads that talk to Postgres need the interpreter for microseconds at a time.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    # uvicorn raises the signal again once it has stopped. By default that would end the process before the
    # deliveries are written.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    uvloop.run(serve(boot))


if __name__ == "__main__":
    main()
