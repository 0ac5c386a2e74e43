"""Embedded Temporal: the development server with its web UI, over SQLite."""

import subprocess

from app.stack.files import StateDir
from app.stack.installed_programs import program
from app.stack.services_record import ServicesRecord
from app.stack.spec import ProcessSpec
from gyre.contracts.errors import BadInput
from gyre.contracts.search import SEARCH_ATTRIBUTES
from gyre.host.ports import HOST

RETENTION = "720h"
"""30 days; the server's default of one day would drop histories that an audit still reads."""
DYNAMIC = ("matching.numTaskqueueReadPartitions=1", "matching.numTaskqueueWritePartitions=1")
"""One partition per task queue instead of four, which help a cluster and cost a laptop polls and latency."""


def temporal_spec(state: StateDir, record: ServicesRecord) -> ProcessSpec:
    """Return the Temporal server process, with Gyre's search attributes and retention."""
    port, ui_port = record.ports["temporal"], record.ports["temporal_ui"]
    attributes = [f"--search-attribute={name}={kind}" for name, kind in SEARCH_ATTRIBUTES.items()]
    command = (
        program("temporal"), "server", "start-dev", "--ip", HOST,
        "--port", str(port), "--ui-port", str(ui_port), "--ui-disable-news-fetch",
        "--db-filename", str(state.temporal / "temporal.db"), "--log-level", "error", *attributes,
        *(f"--dynamic-config-value={entry}" for entry in DYNAMIC),
    )  # fmt: skip
    return ProcessSpec(
        name="temporal",
        command=command,
        cwd=state.temporal,
        log=state.logs / "temporal.log",
        ports=(port, ui_port),
        healthy=lambda: _operator(port, "cluster", "health"),
        started=lambda: _set_retention(port),
    )


def _operator(port: int, *arguments: str) -> bool:
    command = [program("temporal"), "operator", *arguments, "--address", f"{HOST}:{port}"]
    try:
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _set_retention(port: int) -> None:
    if not _operator(port, "namespace", "update", "--namespace", "default", "--retention", RETENTION):
        raise BadInput(f"Temporal refused a retention of {RETENTION}: see logs/temporal.log")
