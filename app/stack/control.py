"""The keeper's control socket: one JSON command per line, one JSON answer per line.

A command is the JSON of a model below; keepers and clients of different versions talk to each other. The
answer is ``{"result": {...}}``, empty except for ``status``, or ``{"error": sentence}``. After an error the
command was not done, or only in part (a service that cannot start leaves those that could); sending it again
is safe.
"""

import json
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from gyre.contracts.errors import BadInput
from gyre.settings.services import Services

LINE_BYTES = 1 << 20


class ReadStatus(BaseModel):
    """Answered with ``Status``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: Literal["status"] = "status"


class StartServices(BaseModel):
    """Answered when all services serve and the database is migrated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: Literal["start_services"] = "start_services"


class StartRun(BaseModel):
    """Answered when the run's processes are being started, which goes on in the background."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: Literal["start_run"] = "start_run"
    run: str
    services: Services
    revision: int
    harness_slots: int
    evaluate_slots: int
    num_gateways: int = 1


class StopRun(BaseModel):
    """Answered when no process of the run is left."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: Literal["stop_run"] = "stop_run"
    run: str


class StopEverything(BaseModel):
    """Answered when nothing that the keeper started is left; the keeper then ends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: Literal["stop"] = "stop"


KeeperCommand = ReadStatus | StartServices | StartRun | StopRun | StopEverything
COMMANDS: TypeAdapter[KeeperCommand] = TypeAdapter(Annotated[KeeperCommand, Field(discriminator="command")])


class ProcessStatus(BaseModel):
    """The state of one kept process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    state: str
    pid: int | None
    ports: list[int]
    restarts: int
    detail: str | None
    """Why it is not up, or how it last died."""
    log: str


class Status(BaseModel):
    """The keeper and every process it keeps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keeper_pid: int
    processes: list[ProcessStatus]


def ask(path: Path, command: KeeperCommand, *, timeout_s: float = 10.0) -> dict[str, Any]:
    """Send one command and return its result.

    Raises OSError when no keeper listens and BadInput when it refuses.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.sendall(command.model_dump_json().encode() + b"\n")
        with connection.makefile("rb") as stream:
            line = stream.readline(LINE_BYTES)
    if not line:
        raise ConnectionResetError("the keeper ended before it answered")
    answer: dict[str, Any] = json.loads(line)
    if error := answer.get("error"):
        raise BadInput(error)
    return answer["result"]
