"""The processes of a run: gateway, worker and cell supervisor, started from boot files."""

import socket
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from app.stack.files import StateDir, short_socket, write_private
from app.stack.spec import ProcessSpec
from gyre.contracts.boot import CellBoot, GatewayAddress, GatewayBoot, WorkerBoot
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import RunId, cell_id
from gyre.host.ports import HOST, accepts, choose_port
from gyre.settings.problems import first_problem
from gyre.settings.services import Services


class RunRecord(BaseModel):
    """``runs/<run>/processes.json``: what the processes of a run keep over restarts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    services: Services
    revision: int = 0
    """Of the run's configuration, as the processes read it when they start."""
    harness_slots: int
    evaluate_slots: int
    gateway_ports: list[int]
    """One for each gateway process. There are never fewer than before: harnesses hold their addresses."""
    engine_port: int
    wanted: bool = True
    """False once it was stopped; a new keeper starts the runs that are wanted."""

    @model_validator(mode="before")
    @classmethod
    def _of_one_gateway(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Records of runs that began when a run had one gateway name its port alone."""
        if "gateway_port" in given:
            given = {**given, "gateway_ports": [given["gateway_port"]]}
            del given["gateway_port"]
        return given

    def ports(self) -> dict[str, int]:
        """Process that listens, itself or through a child -> port."""
        gateways = {f"{self.run}/{gateway_name(i)}": port for i, port in enumerate(self.gateway_ports)}
        return {**gateways, f"{self.run}/cell-0": self.engine_port}


def gateway_name(index: int) -> str:
    """``gateway``, ``gateway-1``, ..."""
    return f"gateway-{index}" if index else "gateway"


def record_path(state: StateDir, run: str) -> Path:
    return state.run(run) / "processes.json"


def read_run(state: StateDir, run: str) -> RunRecord | None:
    """The record, or None if the run was never started here. Raises BadInput if the file was damaged."""
    path = record_path(state, run)
    try:
        return RunRecord.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise BadInput(f"{path} cannot be read: {first_problem(error)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None


def read_runs(state: StateDir) -> list[RunRecord]:
    """Every run that was started from this state directory, by name."""
    names = sorted(path.parent.name for path in state.runs.glob("*/processes.json"))
    return [record for name in names if (record := read_run(state, name)) is not None]


def write_run(state: StateDir, record: RunRecord) -> None:
    state.run(record.run).mkdir(parents=True, exist_ok=True)
    write_private(record_path(state, record.run), record.model_dump_json(indent=2))


def ensure_run(
    state: StateDir,
    run: str,
    services: Services,
    revision: int,
    harness_slots: int,
    evaluate_slots: int,
    num_gateways: int = 1,
) -> RunRecord:
    """The record of a run that shall have processes; its ports stay what they were."""
    earlier = read_run(state, run)
    taken = {port for other in read_runs(state) for port in other.ports().values()}
    engine_port = earlier.engine_port if earlier else choose_port(taken)
    gateway_ports = list(earlier.gateway_ports) if earlier else []
    while len(gateway_ports) < num_gateways:
        gateway_ports.append(choose_port(taken | {engine_port, *gateway_ports}))
    record = RunRecord(
        run=run,
        services=services,
        revision=revision,
        harness_slots=harness_slots,
        evaluate_slots=evaluate_slots,
        gateway_ports=gateway_ports,
        engine_port=engine_port,
    )
    write_run(state, record)
    return record


def host_name() -> str:
    """This machine's name in ``host/<h>``."""
    return socket.gethostname().split(".")[0].lower() or "localhost"


def run_specs(state: StateDir, record: RunRecord) -> list[ProcessSpec]:
    """Write the boot files and describe the processes, in the order they should start."""
    common = {
        "run": record.run,
        "revision": record.revision,
        "services": record.services.model_dump(mode="json"),
        "state_dir": str(state.run(record.run)),
        "host": host_name(),
    }
    gateways = {
        gateway_name(index): GatewayBoot(
            **common,
            port=port,
            socket=str(short_socket(state.run(record.run) / f"{gateway_name(index)}.sock")),
        )
        for index, port in enumerate(record.gateway_ports)
    }
    worker = WorkerBoot(
        **common,
        gateways=[
            GatewayAddress(url=f"http://{HOST}:{boot.port}", socket=boot.socket) for boot in gateways.values()
        ],
        harness_slots=record.harness_slots,
        evaluate_slots=record.evaluate_slots,
    )
    cell = CellBoot(**common, cell=cell_id(RunId(record.run), 0), engine_port=record.engine_port)
    return [
        _spec(state, record, "cell-0", "gpu_workers.supervisor", cell),
        *(_spec(state, record, name, "gateway", boot, port=boot.port) for name, boot in gateways.items()),
        _spec(state, record, "worker", "app.worker", worker),
    ]


def _spec(
    state: StateDir, record: RunRecord, name: str, module: str, boot: BaseModel, *, port: int | None = None
) -> ProcessSpec:
    folder = state.run(record.run)
    boot_file = folder / f"{name}.boot.json"
    text = boot.model_dump_json(indent=2)
    write_private(boot_file, text)
    return ProcessSpec(
        name=f"{record.run}/{name}",
        command=(sys.executable, "-m", module, "--boot", str(boot_file)),
        cwd=folder,
        log=folder / f"{name}.log",
        environment={"GYRE_RUN": record.run},
        ports=(port,) if port else (),
        healthy=(lambda: accepts(port)) if port else (lambda: True),
        inputs=text,
        stop_grace_s=20.0,
    )
