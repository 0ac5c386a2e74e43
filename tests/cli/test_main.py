"""The command group: help, suggestions, exit codes, and Ctrl-C at any moment as one line and exit code 1."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.cli.commands import COMMANDS
from tests.cli.conftest import RUN

Gyre = Callable[..., tuple[int, str, str]]
WHILE_IMPORTED = "raise KeyboardInterrupt"
WHILE_RUNNING = "def pressed(): raise KeyboardInterrupt"
WHILE_ASKED = "import typer\ndef pressed(): raise typer.Abort"
USAGE = "def pressed(number: int): pass"


@pytest.fixture
def pressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A function that makes ``gyre pressed`` a command with the given source."""

    def write(source: str) -> None:
        (tmp_path / "pressed_module.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "pressed_module", raising=False)
        monkeypatch.setitem(COMMANDS, "pressed", ("pressed_module", "a command of this test"))

    yield write
    sys.modules.pop("pressed_module", None)


@pytest.mark.parametrize("source", [WHILE_IMPORTED, WHILE_RUNNING, WHILE_ASKED])
def test_ctrl_c_is_one_line_and_exit_code_one(
    gyre: Gyre, pressed: Callable[[str], None], source: str
) -> None:
    pressed(source)
    assert gyre("pressed") == (1, "", "gyre: interrupted\n")


@pytest.mark.parametrize("arguments", [(), ("x",), ("1", "2"), ("1", "--wrong")])
def test_usage_errors_exit_two(
    gyre: Gyre, pressed: Callable[[str], None], arguments: tuple[str, ...]
) -> None:
    pressed(USAGE)
    assert gyre("pressed", *arguments)[0] == 2
    assert gyre("pressed", "1") == (0, "", "")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command_on_one_line_of_80_columns(gyre: Gyre, flag: str) -> None:
    code, out, err = gyre(flag)
    assert (code, err) == (0, "")
    listed = {line.split()[0]: line for line in out[out.index("Commands:") :].splitlines()[1:] if line}
    assert list(listed)[: len(COMMANDS)] == list(COMMANDS)
    for name, (_, sentence) in COMMANDS.items():
        assert sentence in listed[name]
    assert max(map(len, out.splitlines())) <= 80


def test_no_command_prints_the_help_and_exits_two(gyre: Gyre) -> None:
    code, out, err = gyre()
    assert (code, out) == (2, "")
    assert "Commands:" in err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_imported_and_explains_itself(gyre: Gyre, name: str) -> None:
    code, out, _ = gyre(name, "--help")
    assert code == 0
    assert out.startswith(f"Usage: gyre {name} ")


@pytest.mark.parametrize("name", ["nobody", RUN])
def test_audit_finds_the_run_before_it_loads_torch(state_dir: Path, name: str) -> None:
    code = (
        "import sys\nfrom app.cli.main import main\n"
        "try: main(['audit', sys.argv[1]])\n"
        "finally: print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, name],
        env={**os.environ, "GYRE_STATE_DIR": str(state_dir)},
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout) == (2, "False\n"), result.stderr
    assert result.stderr.startswith("gyre: no ")
