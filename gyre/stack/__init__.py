"""The embedded services and the processes of runs, kept alive by one daemon for each state directory."""

from gyre.stack.client import down, ensure_up, services_of, start_run, status, stop_run

__all__ = ["down", "ensure_up", "services_of", "start_run", "status", "stop_run"]
