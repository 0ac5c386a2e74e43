"""The run file and the addresses of the services. Nothing else in Gyre reads the environment."""

from gyre.settings.runfile import RunFile, load_run_file
from gyre.settings.services import Services

__all__ = ["RunFile", "Services", "load_run_file"]
