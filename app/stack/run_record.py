"""``runs/<run>/processes.json``: ports and settings of a run's processes, kept across restarts."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from app.stack.files import StateDir, read_record, write_private
from gyre.host.ports import choose_port
from gyre.settings.services import Services


class RunRecord(BaseModel):
    """Contents of ``processes.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    services: Services
    revision: int = 0
    """Revision of the run's configuration that the processes read when they start."""
    harness_slots: int
    evaluate_slots: int
    gateway_ports: list[int]
    """One per gateway process. Their number never shrinks, because harnesses hold the addresses."""
    engine_port: int
    wanted: bool = True
    """False once the run was stopped; a new keeper starts the runs that are wanted."""

    def ports(self) -> dict[str, int]:
        """Return the port of each process that listens, itself or through a child, by process name."""
        gateways = {f"{self.run}/{gateway_name(i)}": port for i, port in enumerate(self.gateway_ports)}
        return {**gateways, f"{self.run}/cell-0": self.engine_port}


def gateway_name(index: int) -> str:
    """Return ``gateway``, ``gateway-1``, ..."""
    return f"gateway-{index}" if index else "gateway"


def record_path(state: StateDir, run: str) -> Path:
    return state.run(run) / "processes.json"


def read_run(state: StateDir, run: str) -> RunRecord | None:
    """Return the record, or None if the run was never started here. Raises BadInput if it is damaged."""
    return read_record(RunRecord, record_path(state, run))


def read_runs(state: StateDir) -> list[RunRecord]:
    """Return the record of every run that was started from this state directory, by name."""
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
    """Write and return the record of a run that is to have processes. Ports chosen earlier stay."""
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
