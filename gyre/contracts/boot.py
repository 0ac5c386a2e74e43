"""What the processes of a run are told when they start, and how they find each other.

``app/stack`` starts each process as ``python -m <module> --boot FILE`` where FILE holds one of these
documents as JSON, mode 0600 (it carries the services' credentials). Nothing else is passed.
"""

import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gyre.contracts.errors import BadInput
from gyre.contracts.ids import AttemptId

B = TypeVar("B", bound=BaseModel)


def read_boot(kind: type[B], arguments: Sequence[str]) -> B:
    """The boot document named by ``--boot FILE`` on a command line; other arguments are left alone.

    Where there is none that is valid: one sentence on stderr and SystemExit with code 2.
    """
    try:
        return _read(kind, _boot_file(arguments))
    except BadInput as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


def _boot_file(arguments: Sequence[str]) -> Path:
    if "--boot" not in arguments[:-1]:
        raise BadInput(f"usage: {arguments[0]} --boot FILE")
    return Path(arguments[list(arguments).index("--boot") + 1])


def _read(kind: type[B], path: Path) -> B:
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"boot file {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"boot file {path}: {where}: {first['msg']}") from None


class Boot(BaseModel):
    """Common to every process of a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    revision: int = 0
    """Of the run's configuration, which is read from Postgres: a process of another one is restarted."""
    services: dict[str, Any]
    """gyre.settings.Services as JSON; contracts do not import settings."""
    state_dir: str
    """``.gyre/runs/<run>``: logs, sockets, attempts."""
    host: str
    """Name of this machine in ``host/<h>``."""


class GatewayBoot(Boot):
    """``python -m gateway``."""

    port: int
    """On 127.0.0.1; kept over restarts, because harnesses hold the address."""
    socket: str
    """Unix socket that sandboxes bind-mount; same app as the port."""
    hold_s: float = Field(default=300, gt=0)
    """How long a call waits while no engine serves or Postgres is away."""
    engine_read_s: float = Field(default=600, gt=0)
    """An engine that is silent for so long on one request counts as failed; where its answer comes as one,
    for 0.1 s more a token of it."""
    ping_s: float = Field(default=5, gt=0)
    """Between pings on a stream that waits for its answer."""


class GatewayAddress(BaseModel):
    """Where a gateway process of this host listens: the same application at both."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    socket: str


def gateway_of(attempt: AttemptId, gateways: Sequence[GatewayAddress]) -> GatewayAddress:
    """The gateway process that serves an attempt: one for all its calls, so that each tree has one writer,
    and one for its group, whose prompts begin alike."""
    group = attempt.partition("/rollout/")[0]
    return gateways[zlib.crc32(group.encode()) % len(gateways)]


class WorkerBoot(Boot):
    """``python -m app.worker``: workflows, control, short, evaluate and host queues."""

    gateways: list[GatewayAddress] = Field(min_length=1)
    harness_slots: int = Field(ge=1)
    evaluate_slots: int = Field(ge=1)


class CellBoot(Boot):
    """``python -m gpu_workers.supervisor``."""

    cell: str
    engine_port: int


class EngineBoot(BaseModel):
    """``python -m gpu_workers.engine``; started by the supervisor."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_path: str
    port: int
    epoch: int
    dtype: str = "float32"
    device: str = "cpu"
    context_tokens: int = Field(default=2048, ge=2)
    max_batch: int = Field(default=32, ge=1)
    weight_version: int = 0
    """Version of the weights at ``model_path``; later ones come by ``/pull_weights``."""


class TrainerBoot(Boot):
    """``python -m gpu_workers.trainer``; started by the supervisor, one process a rank."""

    cell: str
    epoch: int
    socket: str
    """Unix socket of rank 0: one JSON command a line, one JSON answer a line (TrainerCommand)."""
    rank: int = 0
    world_size: int = 1
    rendezvous: str = ""
    """``host:port`` of the process group's store when world_size > 1."""


class TrainerCommand(BaseModel):
    """A command to the trainer. Commands of another epoch are refused.

    ``status`` -> {version, training, busy}
    ``load`` {version} -> {version}: weights and optimizer of that checkpoint, from S3
    ``train`` {batch_id} -> {version, sha256, metrics}: accumulate, update, durable checkpoint, row
    ``publish`` {version} -> {reference: WeightsReference}
    ``release`` {version} -> {}: the published copy may be freed
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str
    epoch: int
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])


class TrainerAnswer(BaseModel):
    """``error`` is one sentence; None means the command did what it says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    error: str | None = None
    retryable: bool = True
    result: dict[str, Any] = Field(default_factory=dict[str, Any])
