"""Input, checked at the edge. Nothing else in Gyre reads the environment.

harnesses.py      facts that the gateway needs per harness
models.py         check that a model can be trained
problems.py       first problem of an invalid document
runfile.py        every run file key, with its reason
services.py       addresses and credentials of services
state.py          location of `.gyre`
task_folders.py   Harbor task folders and their hashes
"""

from gyre.settings.runfile import RunFile, load_run_file
from gyre.settings.services import Services

__all__ = ["RunFile", "Services", "load_run_file"]
