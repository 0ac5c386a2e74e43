"""Commands over a Unix socket: one JSON line in, one JSON line out.

Each connection has a thread. Commands run one after another on the main thread, where torch, the process
groups and Mooncake live; only ``status`` is answered at once.
"""

import queue
import socketserver
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpu_workers.trainer.trainer import Trainer
from gyre.contracts.boot import TrainerAnswer, TrainerCommand
from gyre.contracts.errors import Fenced, GyreError, TrainerFailed
from gyre.contracts.ids import BatchId

LONGEST_COMMAND_S = 4 * 3600.0
"""Longest time until a connection gets an error in place of its answer."""


class CommandServer:
    """Serves the trainer of one epoch at a socket path until the process ends."""

    def __init__(self, trainer: Trainer, epoch: int, socket: Path) -> None:
        self._trainer, self._epoch = trainer, epoch
        self._queue = queue.Queue[tuple[TrainerCommand, Future[TrainerAnswer]]]()
        self._running: str | None = None
        socket.unlink(missing_ok=True)
        self._server = _Server(str(socket), _Handler)
        self._server.answer = self.answer

    def serve_forever(self) -> None:
        """Run commands on the calling thread. Does not return."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        while True:
            command, future = self._queue.get()
            self._running = command.command
            future.set_result(self._perform(command))
            self._running = None

    def answer(self, line: bytes) -> TrainerAnswer:
        """Return the answer to one line. Called on connection threads."""
        try:
            command = TrainerCommand.model_validate_json(line)
        except ValidationError as error:
            return TrainerAnswer(error=f"not a command: {error.errors()[0]['msg']}", retryable=False)
        # Refused before it is queued: a command for another epoch must not wait behind a training.
        if command.epoch != self._epoch:
            fenced = Fenced(f"this trainer is of epoch {self._epoch}, the command of {command.epoch}")
            return _refusal(fenced)
        if command.command == "status":
            busy = self._running is not None
            result = {"version": self._trainer.version, "training": self._running == "train", "busy": busy}
            return TrainerAnswer(result=result)
        future = Future[TrainerAnswer]()
        self._queue.put((command, future))
        try:
            return future.result(LONGEST_COMMAND_S)
        except TimeoutError:
            return _refusal(TrainerFailed(f"{command.command} took longer than {LONGEST_COMMAND_S:.0f} s"))

    def _perform(self, command: TrainerCommand) -> TrainerAnswer:
        try:
            return TrainerAnswer(result=self._result(command.command, command.arguments))
        except GyreError as error:
            return _refusal(error)
        except (KeyError, TypeError, ValueError) as error:
            return TrainerAnswer(error=f"{command.command}: {type(error).__name__}: {error}", retryable=False)
        except Exception as error:  # the process boundary: anything that torch, S3 or Postgres raise
            return TrainerAnswer(error=f"{command.command}: {type(error).__name__}: {error}", retryable=True)

    def _result(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name == "load":
            return {"version": self._trainer.load(int(arguments["version"]))}
        if name == "train":
            return self._trainer.train(BatchId(arguments["batch_id"]))
        if name == "publish":
            return {"reference": self._trainer.publish(int(arguments["version"])).model_dump()}
        if name == "release":
            self._trainer.release(int(arguments["version"]))
            return {}
        raise ValueError(f"unknown command {name!r}")


def _refusal(error: GyreError) -> TrainerAnswer:
    # A fenced command is meant for another incarnation; a retry reads the cell again and reaches that one.
    return TrainerAnswer(error=str(error), retryable=error.retryable or isinstance(error, Fenced))


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    answer: Any


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server: Any = self.server
        for line in self.rfile:
            self.wfile.write(server.answer(line).model_dump_json().encode() + b"\n")
