"""The processes of a run: gateway, worker and cell supervisor, started from boot files."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from app.stack.files import StateDir, write_private
from gyre.contracts.errors import BadInput
from gyre.host.ports import choose_port
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
