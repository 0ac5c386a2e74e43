"""The embedded services and the processes of runs, kept alive by one daemon for each state directory."""

from app.stack.client import (
    all_services,
    down,
    ensure_up,
    is_down,
    services_of,
    start_run,
    status,
    stop_run,
    unkept,
)

__all__ = [
    "all_services",
    "down",
    "ensure_up",
    "is_down",
    "services_of",
    "start_run",
    "status",
    "stop_run",
    "unkept",
]
