"""The embedded services and the processes of runs, kept alive by one daemon for each state directory."""

from gyre.stack.client import all_services, down, ensure_up, services_of, start_run, status, stop_run

__all__ = ["all_services", "down", "ensure_up", "services_of", "start_run", "status", "stop_run"]
