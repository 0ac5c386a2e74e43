"""``python -m gpu_workers.engine --boot FILE [--parent PID]``: serve the engine protocol on 127.0.0.1."""

import logging
import sys
from types import FrameType

import torch
import uvicorn

from gpu_workers.children import exit_with_parent
from gpu_workers.engine.server import EngineServer, create_app
from gyre.contracts.boot import EngineBoot, read_boot
from gyre.contracts.errors import BadInput
from gyre.host.ports import HOST

NUM_THREADS = 1
"""Torch threads on a CPU: trainer, harnesses and evaluators share its cores, and results repeat exactly."""
SWITCH_INTERVAL_S = 0.0005
"""The decode loop takes the interpreter lock hundreds of times per step. At Python's default of 5 ms a busy
HTTP thread would delay each of them."""


class _AbortingUvicorn(uvicorn.Server):
    """On SIGTERM or SIGINT, answers requests in flight with what they have so far, then ends."""

    def __init__(self, config: uvicorn.Config, server: EngineServer) -> None:
        super().__init__(config)
        self._server = server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._server.scheduler.abort_all()
        super().handle_exit(sig, frame)


def serve(boot: EngineBoot) -> None:
    torch.set_num_threads(NUM_THREADS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    server = EngineServer(boot)
    config = uvicorn.Config(
        create_app(server),
        host=HOST,
        port=boot.port,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=5,
    )
    _AbortingUvicorn(config, server).run()


def main() -> int:
    boot = read_boot(EngineBoot, sys.argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    exit_with_parent(sys.argv)
    try:
        serve(boot)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
