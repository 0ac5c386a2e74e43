"""``gyre up``, ``gyre down``, ``gyre ps``."""

from typing import Any

from app import stack
from app.cli.output import AsJson, print_json, print_rows, stderr
from gyre.settings.services import Services
from gyre.settings.state import state_dir

UNKEPT = "what is not kept was left by a keeper that is gone; `gyre up` keeps it again"


def up(as_json: AsJson = False) -> None:
    """Start the embedded services: Temporal, Postgres and S3. What runs already is left alone."""
    with stderr.status("starting Temporal, Postgres and S3"):
        services = stack.ensure_up(state_dir())
    if as_json:
        print_json(addresses(services))
        return
    for name, value in addresses(services).items():
        print(f"{name:<16} {value}")


def addresses(services: Services) -> dict[str, Any]:
    """Where the services are, without their credentials."""
    return {
        "temporal": services.temporal_address,
        "temporal_ui": services.temporal_ui,
        "postgres": services.postgres_dsn.rpartition("@")[2],
        "s3": services.s3_endpoint,
        "s3_bucket": services.s3_bucket,
        "state_dir": str(state_dir()),
    }


def down(as_json: AsJson = False) -> None:
    """Stop the processes of runs and the services. `gyre up` brings both back with all their data."""
    with stderr.status("stopping"):
        was_up = stack.down(state_dir())
    if as_json:
        print_json({"stopped": was_up})
    else:
        print("stopped" if was_up else "nothing was running")


def ps(as_json: AsJson = False) -> None:
    """Show what runs here, and what has trouble doing so."""
    found = stack.status(state_dir())
    lost = stack.unkept(state_dir())
    rows = [process.model_dump() for process in [*(found.processes if found else []), *lost]]
    if as_json:
        print_json({"keeper_pid": found.keeper_pid if found else None, "processes": rows})
        return
    columns = ("name", "state", "pid", "ports", "restarts", "detail")
    print_rows(rows, columns, empty="nothing runs; `gyre up` starts the services")
    if lost:
        print("the keeper is gone; `gyre up` brings it back" if found is None else UNKEPT)
