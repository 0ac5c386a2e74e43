"""Imports between rooms, and modules that a workflow worker must not load."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "sqlalchemy", "boto3", "megatron", "sglang", "transformers", "db", "activities")


def test_the_import_contracts_hold() -> None:
    code = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(no_cache=True))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("room", ["workflows.training_run", "workflows.rollout", "workflows.query_group"])
def test_workflows_load_nothing_heavy(room: str) -> None:
    code = f"import {room}, sys; print(*sorted(set({HEAVY!r}) & sys.modules.keys()))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []


def test_help_loads_no_command() -> None:
    code = (
        "import contextlib, sys\nfrom app.cli.main import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\n"
        "from app.cli.commands import COMMANDS\n"
        "commands = {module for module, _ in COMMANDS.values()}\n"
        "heavy = {'rich', 'sqlalchemy', 'temporalio', 'torch'}\n"
        "assert not (commands | heavy) & sys.modules.keys(), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_search_attributes_are_registered_with_the_types_they_are_used_with() -> None:
    from temporalio.common import SearchAttributeKey

    from gyre.contracts.search import SEARCH_ATTRIBUTES
    from gyre.durable import client

    keys = [value for value in vars(client).values() if isinstance(value, SearchAttributeKey)]
    used = {key.name: key.indexed_value_type.name.title() for key in keys}
    assert used == SEARCH_ATTRIBUTES
