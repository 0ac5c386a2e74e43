"""The LiteLLM proxy in its own virtual environment, set up as its documentation recommends for production.

It logs only errors and has no database, no callbacks, a master key, and one model on an Anthropic-style
backend, so that ``/v1/messages`` needs no translation.
"""

import json
import os
import subprocess
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway_stack import Stack
from gyre.host.ports import HOST, choose_port

VERSION = "1.105.7"
"""The newest version whose proxy extra installs from the public index alone."""
MASTER_KEY = "sk-bench"
SETTINGS = {"LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
INSTALL_S = 900


@dataclass(frozen=True)
class Served:
    """Where a proxy listens, and how it was set up."""

    port: int
    config: str


def folder() -> Path:
    """Return the folder of its virtual environment."""
    return Path.home() / ".cache" / "gyre" / f"litellm-{VERSION}"


def installed() -> bool:
    """Return whether the proxy is installed."""
    return (folder() / "bin" / "litellm").exists()


def install(say: Callable[[str], None]) -> None:
    """Install the proxy once, in its own virtual environment: it pins versions that must not reach ours."""
    if installed():
        return
    say(f"installing litellm[proxy]=={VERSION} into {folder()}")
    venv.create(folder(), with_pip=True, clear=True)
    pip = [str(folder() / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, f"litellm[proxy]=={VERSION}"], check=True, timeout=INSTALL_S)


@contextmanager
def proxy(stack: Stack, workers: int) -> Iterator[Served]:
    """Run a proxy in front of the instant backend until the block ends."""
    port = choose_port({stack.backend_port})
    backend = f"http://{HOST}:{stack.backend_port}"
    document = {
        "model_list": [
            {
                "model_name": "policy",
                "litellm_params": {"model": "anthropic/policy", "api_base": backend, "api_key": "-"},
            }
        ],
        "general_settings": {"master_key": MASTER_KEY},
        "litellm_settings": {
            "set_verbose": False,
            "json_logs": True,
            "request_timeout": 600,
            "telemetry": False,
        },
    }
    path = stack.folder / "litellm.yaml"
    path.write_text(json.dumps(document))  # JSON is YAML
    options = ["--config", str(path), "--host", HOST, "--port", str(port), "--num_workers", str(workers)]
    program, environment = str(folder() / "bin" / "litellm"), {**os.environ, **SETTINGS}
    with stack.process(f"litellm-{workers}", [program, *options], port, env=environment):
        yield Served(
            port, f"litellm[proxy]=={VERSION} {' '.join(options[2:])}, {SETTINGS}, {json.dumps(document)}"
        )
