"""Boot documents of a run's processes, and the commands between a cell's supervisor and its trainer.

``app/stack`` starts each process as ``python -m <module> --boot FILE``. FILE holds one of these documents as
JSON and has mode 0600, because it carries the services' credentials. Nothing else is passed.
"""

import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gyre.contracts.ids import AttemptId

B = TypeVar("B", bound=BaseModel)


def read_boot(kind: type[B], arguments: Sequence[str]) -> B:
    """Read the boot document named by ``--boot FILE`` on a command line; other arguments are ignored.

    If there is no valid one, print one sentence to stderr and exit with code 2.
    """
    if "--boot" not in arguments[:-1]:
        problem = f"usage: {arguments[0]} --boot FILE"
    else:
        path = Path(arguments[list(arguments).index("--boot") + 1])
        try:
            return kind.model_validate_json(path.read_bytes())
        except OSError as error:
            problem = f"boot file {path}: {error.strerror}"
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"boot file {path}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    print(problem, file=sys.stderr)
    raise SystemExit(2)


class Boot(BaseModel):
    """Fields that every process of a run gets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    revision: int = 0
    """Revision of the run's configuration, which is read from Postgres. A process of another revision is
    restarted."""
    services: dict[str, Any]
    """``gyre.settings.Services`` as JSON, because contracts do not import settings."""
    state_dir: str
    """``.gyre/runs/<run>``, with logs, sockets and attempts."""
    host: str
    """Name of this machine in the queues ``host/<h>``."""


class GatewayBoot(Boot):
    """Boot document of ``python -m gateway``."""

    port: int
    """Port on 127.0.0.1. It stays the same across restarts, because harnesses hold the address."""
    socket: str
    """Unix socket that sandboxes bind-mount; it serves the same application as the port."""
    hold_s: float = Field(default=300, gt=0)
    """Longest wait of a call while no engine serves or Postgres is away."""
    engine_read_s: float = Field(default=600, gt=0)
    """Silence on one request after which the engine counts as failed. An answer in one piece gets 0.1 s more
    per requested token."""
    ping_s: float = Field(default=5, gt=0)
    """Period of pings on a stream that waits for its answer."""


class GatewayAddress(BaseModel):
    """Addresses of one gateway process on this host; both lead to the same application."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    socket: str


def gateway_of(attempt: AttemptId, gateways: Sequence[GatewayAddress]) -> GatewayAddress:
    """Choose the gateway process that serves an attempt.

    All calls of an attempt go to one process, so that its tree has one writer. All attempts of a group go
    to the same process, because their prompts begin alike.
    """
    group = attempt.partition("/rollout/")[0]
    return gateways[zlib.crc32(group.encode()) % len(gateways)]


class WorkerBoot(Boot):
    """Boot document of ``python -m app.worker``."""

    gateways: list[GatewayAddress] = Field(min_length=1)
    harness_slots: int = Field(ge=1)
    evaluate_slots: int = Field(ge=1)


class CellBoot(Boot):
    """Boot document of ``python -m gpu_workers.supervisor``."""

    cell: str
    engine_port: int


class EngineBoot(BaseModel):
    """Boot document of ``python -m gpu_workers.engine``, which the supervisor starts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_path: str
    port: int
    epoch: int
    dtype: str = "float32"
    device: str = "cpu"
    context_tokens: int = Field(default=2048, ge=2)
    max_batch: int = Field(default=32, ge=1)
    weight_version: int = 0
    """Version of the weights at ``model_path``. Later versions arrive by ``/pull_weights``."""


class TrainerBoot(Boot):
    """Boot document of ``python -m gpu_workers.trainer``, started by the supervisor: one process per rank."""

    cell: str
    epoch: int
    socket: str
    """Unix socket of rank 0, with one JSON TrainerCommand per line and one JSON TrainerAnswer per line."""
    rank: int = 0
    world_size: int = 1
    rendezvous: str = ""
    """``host:port`` of the process group's store; needed if ``world_size`` > 1."""


class TrainerCommand(BaseModel):
    """A command to the trainer, which refuses commands of another epoch.

    ``status`` -> {version, training, busy}
    ``load`` {version} -> {version}: load weights and optimizer of that checkpoint from S3
    ``train`` {batch_id} -> {version, sha256, metrics}: accumulate, update, store the checkpoint, commit it
    ``publish`` {version} -> {reference: WeightsReference}
    ``release`` {version} -> {}: free the published copy
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str
    epoch: int
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])


class TrainerAnswer(BaseModel):
    """A command's result, or one sentence in ``error`` if it failed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    error: str | None = None
    retryable: bool = True
    result: dict[str, Any] = Field(default_factory=dict[str, Any])
