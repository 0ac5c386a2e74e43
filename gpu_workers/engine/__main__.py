"""``python -m gpu_workers.engine --boot FILE``: serve the engine protocol on 127.0.0.1."""

import argparse
import logging
import os
import sys
import threading
import time
from types import FrameType

import torch
import uvicorn

from gpu_workers.engine.server import EngineServer, create_app
from gyre.contracts.boot import EngineBoot, read_boot
from gyre.contracts.errors import BadInput

log = logging.getLogger("gyre.engine")
NUM_THREADS = 1
"""Of torch on the CPU: trainer, harnesses and evaluators share its cores, and results repeat."""
_LOOK_S = 0.5
_SWITCH_S = 0.0005
"""The decode loop takes the interpreter lock hundreds of times a step; at Python's default of 5 ms a
busy HTTP thread would hold up each of them."""


class _Uvicorn(uvicorn.Server):
    """On SIGTERM or SIGINT, requests in flight answer with what they have, and then the server ends."""

    def __init__(self, config: uvicorn.Config, server: EngineServer) -> None:
        super().__init__(config)
        self._server = server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._server.scheduler.abort_all()
        super().handle_exit(sig, frame)


def end_with_parent(parent: int) -> None:
    """Exit when process ``parent`` is no longer this one's parent, so that no engine survives a killed
    supervisor. (PR_SET_PDEATHSIG would fire when the *thread* that started us ends.)"""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        log.warning("parent %d is gone: exiting", parent)
        # Nobody is left to answer to, and a graceful end could wait for requests.
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def serve(boot: EngineBoot) -> None:
    torch.set_num_threads(NUM_THREADS)
    sys.setswitchinterval(_SWITCH_S)
    server = EngineServer(boot)
    config = uvicorn.Config(
        create_app(server),
        host="127.0.0.1",
        port=boot.port,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=5,
    )
    _Uvicorn(config, server).run()


def main() -> int:
    started_by = os.getppid()
    boot = read_boot(EngineBoot, sys.argv)
    parser = argparse.ArgumentParser(description="the embedded engine")
    parser.add_argument("--boot", help="EngineBoot as JSON")
    parser.add_argument("--parent", type=int, default=started_by, help="exit when this process ends")
    given = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    if given.parent > 1:  # A daemon's parent is init, which does not end.
        end_with_parent(given.parent)
    try:
        serve(boot)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
