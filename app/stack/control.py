"""The keeper's control socket: one JSON request a line, one JSON answer a line.

``{"command": "status"}`` -> Status
``{"command": "start_services"}`` -> {} when they serve
``{"command": "start_run", "run", "services", "revision", "harness_slots", "evaluate_slots",
"num_gateways"}`` -> {}
``{"command": "stop_run", "run"}`` -> {}
``{"command": "stop"}`` -> {} when everything has ended
An answer with ``error`` is one sentence: the command was not done, or not to its end (a service that cannot
start leaves those that could), and sending it again is safe.
"""

import json
import socket
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from gyre.contracts.errors import BadInput
from gyre.contracts.json_text import json_line

LINE_BYTES = 1 << 20


class ProcessStatus(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    state: str
    pid: int | None
    ports: list[int]
    restarts: int
    detail: str | None
    """Why it is not up, or how it died last."""
    log: str


class Status(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keeper_pid: int
    processes: list[ProcessStatus]


def ask(path: Path, command: str, *, timeout_s: float = 10.0, **arguments: Any) -> dict[str, Any]:
    """Send one command. Raises OSError when no keeper listens and BadInput when it refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.sendall(json_line({"command": command, **arguments}))
        with connection.makefile("rb") as stream:
            line = stream.readline(LINE_BYTES)
    if not line:
        raise ConnectionResetError("the keeper ended before it answered")
    answer: dict[str, Any] = json.loads(line)
    if error := answer.get("error"):
        raise BadInput(error)
    return answer["result"]
