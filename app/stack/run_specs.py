"""The processes of a run (gateways, worker, cell supervisor) and the boot files they start from."""

import socket
import sys

from pydantic import BaseModel

from app.stack.files import StateDir, short_socket, write_private
from app.stack.run_record import RunRecord, gateway_name
from app.stack.spec import ProcessSpec
from gyre.contracts.boot import CellBoot, GatewayAddress, GatewayBoot, WorkerBoot
from gyre.contracts.ids import RunId, cell_id
from gyre.host.ports import HOST, accepts


def host_name() -> str:
    """Return this machine's name in ``host/<h>``."""
    return socket.gethostname().split(".")[0].lower() or "localhost"


def run_specs(state: StateDir, record: RunRecord) -> list[ProcessSpec]:
    """Write the boot files and return the processes in the order in which they should start."""
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
