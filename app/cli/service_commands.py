"""``gyre up``, ``gyre down``, ``gyre ps``."""

from typing import Any

from app import stack
from app.cli.output import AsJson, print_json, print_rows, stderr
from gyre.settings.services import Services
from gyre.settings.state import state_dir

UNKEPT = "processes without a keeper were left by one that died; `gyre up` adopts them again"


def up(as_json: AsJson = False) -> None:
    """Start the embedded services: Temporal, Postgres and S3. Those that run already are left alone."""
    with stderr.status("starting Temporal, Postgres and S3"):
        services = stack.ensure_up(state_dir())
    if as_json:
        print_json(addresses(services))
        return
    for name, value in addresses(services).items():
        print(f"{name:<16} {value}")


def addresses(services: Services) -> dict[str, Any]:
    """Return the addresses of the services, without their credentials."""
    return {
        "temporal": services.temporal_address,
        "temporal_ui": services.temporal_ui,
        "postgres": services.postgres_dsn.rpartition("@")[2],
        "s3": services.s3_endpoint,
        "s3_bucket": services.s3_bucket,
        "state_dir": str(state_dir()),
    }


def down(as_json: AsJson = False) -> None:
    """Stop the processes of runs and the services. `gyre up` starts both again with all their data."""
    with stderr.status("stopping processes and services"):
        was_up = stack.down(state_dir())
    if as_json:
        print_json({"stopped": was_up})
    else:
        print("stopped" if was_up else "nothing was running")


def ps(as_json: AsJson = False) -> None:
    """List the services and the processes of runs, with their state and their trouble."""
    found = stack.status(state_dir())
    lost = stack.unkept(state_dir())
    rows = [process.model_dump() for process in [*(found.processes if found else []), *lost]]
    if as_json:
        print_json({"keeper_pid": found.keeper_pid if found else None, "processes": rows})
        return
    columns = ("name", "state", "pid", "ports", "restarts", "detail")
    print_rows(rows, columns, empty="nothing is running; `gyre up` starts the services")
    if lost:
        print("the keeper is gone; `gyre up` brings it back" if found is None else UNKEPT)
