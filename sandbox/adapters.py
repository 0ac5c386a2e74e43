"""Adapters that run harnesses unaware of Gyre: a catalogue of TOML files with placeholders.

An adapter's ``command``, ``environment``, ``files`` and ``mounts`` are templates over
``{instruction} {instruction_file} {base_url} {token} {model} {context_tokens} {max_tokens} {workspace} {home}
{python} {binary} {repository} {options.NAME} {mounts.NAME}``. A nested list of ``command`` and a variable of
``environment`` are left out when an option that they name is empty.
"""

import functools
import json
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gyre.contracts.errors import BadInput
from gyre.contracts.roles import RoleRule
from sandbox import isolation, programs
from sandbox.harness_process import REPOSITORY, HarnessSpec, Limits

CATALOGUE = Path(__file__).parent / "catalogue"
PLACEHOLDER = re.compile(r"\{([a-z_]+(?:\.[a-z_0-9]+)?)\}")
PLAIN_NAMES = {
    "instruction", "instruction_file", "base_url", "token", "model", "context_tokens", "max_tokens",
    "workspace", "home", "python", "binary", "repository",
}  # fmt: skip
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


class Adapter(BaseModel):
    """Contents of one catalogue file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    dialect: Literal["openai", "anthropic", "responses"]
    command: list[str | list[str]] = Field(min_length=1)
    environment: dict[str, str]
    """Variables of the harness; most receive the token and the gateway's address here."""
    files: dict[str, str] = Field(default_factory=dict[str, str])
    """Content by path below the home folder."""
    mounts: dict[str, str] = Field(default_factory=dict[str, str])
    """Folder of this machine by name, mounted read-only inside as ``{mounts.NAME}``."""
    options: dict[str, str] = Field(default_factory=dict[str, str])
    """Known options with their defaults; ``[harness.options]`` of the run file changes them."""
    binary: str | None = None
    """Program found by the option ``binary`` or on PATH; the folders it needs are mounted."""
    version: str | None = None
    """Version of the harness with which this file was tested."""
    package: str | None = None
    """Package that installs the program: ``npm:NAME`` or ``pypi:NAME``."""
    limit_address_space: bool = True
    roles: tuple[RoleRule, ...] = ()
    early_start: bool = True
    """Like ``roles``, read by the gateway: see `gyre.settings.harnesses.HarnessFacts`."""


@dataclass(frozen=True)
class Launch:
    """Values that differ per attempt."""

    directory: Path
    instruction: str
    token: str
    gateway_socket: str
    gateway_url: str
    """Address for a harness that runs as a plain process, outside any network namespace."""
    time_limit_s: float
    limits: Limits
    context_tokens: int
    """Context length of the policy, so that a harness compacts in time."""
    max_tokens: int
    """Longest answer to one call."""
    model: str = "policy"


@functools.cache
def load_adapter(name: str) -> Adapter:
    """Return an adapter of the catalogue. Raises BadInput if there is none or its file is not valid."""
    path = CATALOGUE / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in CATALOGUE.glob("*.toml")))
        raise BadInput(f"harness.name = {name!r}: no such adapter (allowed: {known})")
    try:
        adapter = Adapter.model_validate(tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise BadInput(f"adapter {name}: {error}") from None
    _check_placeholders(adapter)
    return adapter


def check_harness(name: str, options: dict[str, str]) -> None:
    """Raise BadInput if the harness could not be started here; called before a run is created."""
    adapter = load_adapter(name)
    values = {f"options.{k}": v for k, v in _options(adapter, options).items()}
    values["repository"] = str(REPOSITORY)
    for mount, template in adapter.mounts.items():
        folder = _fill(_fill(template, values), values)
        if not Path(folder).is_dir():
            raise BadInput(f"harness {name}: its folder {mount!r} does not exist: {folder}")
    if adapter.binary:
        _program(adapter, options)


def render(adapter: Adapter, options: dict[str, str], launch: Launch) -> HarnessSpec:
    """Write the adapter's files and the instruction into the attempt's directory; return its spec."""
    plain = isolation.probe() == isolation.PLAIN
    home, workspace = launch.directory / "home", launch.directory / "workspace"
    home.mkdir(exist_ok=True)
    instruction = launch.directory / "instruction.md"
    instruction.write_text(launch.instruction)
    values = _plain_values(launch, plain)
    values |= {f"options.{k}": _fill(v, values) for k, v in _options(adapter, options).items()}
    mounts, path = _mounts(adapter, options, values, plain)
    values |= {f"mounts.{name}": inside for name, (_, inside) in mounts.items()}
    for name, content in adapter.files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(_fill(content, values))
    groups = [part if isinstance(part, list) else [part] for part in adapter.command]
    variables = adapter.environment.items()
    return HarnessSpec(
        directory=launch.directory,
        argv=[_fill(part, values) for group in groups if _wanted(group, values) for part in group],
        env={"PATH": path, "HOME": values["home"], "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
        | {name: _fill(text, values) for name, text in variables if _wanted([text], values)},
        cwd=values["workspace"],
        time_limit_s=launch.time_limit_s,
        limits=replace(launch.limits, address_space=adapter.limit_address_space),
        gateway_socket=launch.gateway_socket,
        read_only=[
            [str(instruction), "/gyre/instruction.md"],
            *([folder, inside] for folder, inside in mounts.values() if not _in_usr(folder)),
        ],
        writable=[[str(workspace), isolation.WORKSPACE], [str(home), isolation.HOME]],
    )


def _plain_values(launch: Launch, plain: bool) -> dict[str, str]:
    """Return the placeholders that every adapter can use; paths and addresses as the harness sees them."""
    folder = launch.directory
    return {
        "instruction": launch.instruction,
        "instruction_file": str(folder / "instruction.md") if plain else "/gyre/instruction.md",
        "base_url": launch.gateway_url if plain else f"http://127.0.0.1:{isolation.PORT}",
        "token": launch.token,
        "model": launch.model,
        "context_tokens": str(launch.context_tokens),
        "max_tokens": str(launch.max_tokens),
        "workspace": str(folder / "workspace") if plain else isolation.WORKSPACE,
        "home": str(folder / "home") if plain else isolation.HOME,
        "python": isolation.python(),
        "repository": str(REPOSITORY),
    }


def _fill(template: str, values: dict[str, str]) -> str:
    # Other text in braces, such as JSON in a config file, stays as it is; load_adapter has checked the names
    # of options and mounts.
    return PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)


def _options(adapter: Adapter, given: dict[str, str]) -> dict[str, str]:
    known = set(adapter.options) | ({"binary"} if adapter.binary else set())
    if unknown := sorted(set(given) - known):
        allowed = ", ".join(sorted(known))
        raise BadInput(f"unknown key 'harness.options.{unknown[0]}' (allowed: {allowed})")
    return adapter.options | given


def _wanted(templates: list[str], values: dict[str, str]) -> bool:
    """Return whether no option that the templates name is empty."""
    named = {name for text in templates for name in PLACEHOLDER.findall(text)}
    return all(values.get(name) != "" for name in named if name.startswith("options."))


def _mounts(
    adapter: Adapter, options: dict[str, str], values: dict[str, str], plain: bool
) -> tuple[dict[str, tuple[str, str]], str]:
    """Return ``{name: (folder here, folder inside)}`` and PATH; sets ``{binary}`` in ``values``."""
    folders = {name: _fill(template, values) for name, template in adapter.mounts.items()}
    program = _program(adapter, options) if adapter.binary else None
    if program:
        folders["binary"] = str(program.folder)
        if program.node:
            folders["node"] = str(program.node)
    mounts: dict[str, tuple[str, str]] = {}
    for name, folder in folders.items():
        # Node finds packages by the name of the folder that holds them.
        last = "/node_modules" if Path(folder).name == "node_modules" else ""
        mounts[name] = (folder, folder if plain or _in_usr(folder) else f"/harness/{name}{last}")
    if program:
        values["binary"] = f"{mounts['binary'][1]}/{program.path.relative_to(program.folder)}"
        mounts |= {f"python{i}": (str(path), str(path)) for i, path in enumerate(program.python)}
    return mounts, f"{mounts['node'][1]}/bin:{SYSTEM_PATH}" if "node" in mounts else SYSTEM_PATH


def _in_usr(folder: str) -> bool:
    """Return whether the folder is in /usr, which every sandbox sees."""
    return f"{folder}/".startswith("/usr/")


def _program(adapter: Adapter, options: dict[str, str]) -> programs.Program:
    """Return the adapter's program. Raises BadInput that says how to install a missing one."""
    source, _, package = (adapter.package or "").partition(":")
    commands = {
        "npm": f"npm install -g {package}@{adapter.version}",
        "pypi": f"pip install {package}=={adapter.version}",
    }
    advice = f"{commands.get(source, 'install it')}, or set harness.options.binary"
    return programs.find(options.get("binary", adapter.binary or ""), f"harness {adapter.name}", advice)


def _check_placeholders(adapter: Adapter) -> None:
    known = PLAIN_NAMES | {f"options.{name}" for name in adapter.options}
    known |= {f"mounts.{name}" for name in adapter.mounts}
    arguments = [part for group in adapter.command for part in ([group] if isinstance(group, str) else group)]
    texts = [*arguments, *adapter.environment.values(), *adapter.mounts.values()]
    named = [(name, text) for text in texts for name in PLACEHOLDER.findall(text)]
    # In a file only a name with a dot must be a placeholder: the file's own syntax may use braces.
    filed = [(name, text) for text in adapter.files.values() for name in PLACEHOLDER.findall(text)]
    for name, text in [*named, *((name, text) for name, text in filed if "." in name)]:
        if name not in known:
            raise BadInput(f"adapter {adapter.name}: unknown placeholder {{{name}}} in {json.dumps(text)}")
