"""The embedded services and the processes of runs, kept alive by one daemon per state directory.

client.py               up, down, start, stop, status
control.py              the keeper's socket, typed commands
files.py                state directory, atomic private files
installed_programs.py   executables that wheels install
keeper.py               the daemon that keeps everything
kept_process.py         one process, kept alive
ledger.py               what runs, for later adoption
orphans.py              find, end and reap leftovers
postgres.py             embedded Postgres, also under root
restart.py              backoff and circuit breaker
run_record.py           ports and settings of runs
run_specs.py            boot files and run processes
s3.py                   rclone serves a folder
services_record.py      ports and credentials of services
spec.py                 description of a kept process
temporal.py             embedded Temporal with web UI
"""

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
