"""A program is found together with every folder it needs in a sandbox."""

import os
from pathlib import Path

import pytest

from gyre.contracts.errors import BadInput
from sandbox import adapters, isolation, programs
from tests.sandbox.test_adapters import launch


def make(path: Path, first_line: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{first_line}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the prefix of a Node installation that is on PATH."""
    program = make(tmp_path / "node-20" / "bin" / "node", "#!/bin/sh")
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return program.parent.parent


def test_a_native_program_and_a_shell_script_need_their_folder(tmp_path: Path) -> None:
    for first_line in ("\x7fELF", "#!/bin/sh -e", "#!"):
        path = make(tmp_path / "tool" / "bin" / "tool", first_line)
        assert programs.find(str(path), "harness tool", "-") == programs.Program(path, path.parent)


@pytest.mark.parametrize("first_line", ["#!/usr/bin/env node", "#!/usr/bin/env -S node --no-warnings"])
def test_a_node_script_sees_all_packages(tmp_path: Path, node: Path, first_line: str) -> None:
    packages = tmp_path / "node_modules"
    path = make(packages / "tool" / "node_modules" / "inner" / "cli.js", first_line)
    link = tmp_path / "tool"
    link.symlink_to(path)
    assert programs.find(str(link), "harness tool", "-") == programs.Program(path, packages, node=node)
    alone = make(tmp_path / "alone" / "cli.js", first_line)
    assert programs.find(str(alone), "harness tool", "-").folder == alone.parent


def test_a_node_script_without_node_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "tool", "#!/usr/bin/env node")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match=r"harness tool needs Node"):
        programs.find(str(path), "harness tool", "-")


def test_a_python_script_needs_its_environment_and_base_installation(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.symlink_to(isolation.python())
    path = make(python.parent / "tool", f"#!{python}")
    found = programs.find(str(path), "harness tool", "-")
    assert found.python == (tmp_path / "venv", Path(isolation.python()).parent.parent)
    path = make(tmp_path / "tool", "#!/usr/bin/env python3")
    assert programs.find(str(path), "harness tool", "-").python == ()


@pytest.mark.parametrize("quote", ["", '"', "'"])
def test_an_interpreter_too_long_for_a_first_line_is_found(tmp_path: Path, quote: str) -> None:
    """pip and uv write such scripts if the path has a space or is longer than the kernel reads."""
    folder = "a folder" if quote else "f" * 150
    python = make(tmp_path / folder / "bin" / "python3", "\x7fELF")
    path = make(python.parent / "tool", f"#!/bin/sh\n'''exec' {quote}{python}{quote} \"$0\" \"$@\"\n' '''")
    assert programs.find(str(path), "harness tool", "-").python[0] == tmp_path / folder


def test_no_interpreter_exposes_the_whole_machine_to_a_sandbox(tmp_path: Path) -> None:
    if Path("/bin").is_symlink():
        path = make(tmp_path / "tool", "#!/bin/python3")
        assert programs.find(str(path), "harness tool", "-").python[0] == Path("/usr")
    path = make(tmp_path / "other", "#!/sandbox/python3")
    with pytest.raises(BadInput, match=r"harness tool: its interpreter /sandbox/python3 is installed in /"):
        programs.find(str(path), "harness tool", "-")


def test_the_folders_that_a_program_needs_are_mounted(
    tmp_path: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "probe", lambda: isolation.BWRAP)
    script = make(tmp_path / "node_modules" / "tool" / "cli.js", "#!/usr/bin/env node")
    adapter = adapters.Adapter(
        name="tool", dialect="openai", command=["{binary}"], environment={}, binary="tool"
    )
    spec = adapters.render(adapter, {"binary": str(script)}, launch(tmp_path / "a"))
    # Node looks for packages in folders named node_modules.
    assert spec.argv == ["/harness/binary/node_modules/tool/cli.js"]
    assert [str(tmp_path / "node_modules"), "/harness/binary/node_modules"] in spec.read_only
    assert [str(node), "/harness/node"] in spec.read_only
    python = make(tmp_path / "venv" / "bin" / "python3.11", "\x7fELF")
    script = make(python.parent / "tool", f"#!{python}")
    spec = adapters.render(adapter, {"binary": str(script)}, launch(tmp_path / "b"))
    assert spec.argv == ["/harness/binary/tool"]
    assert [str(tmp_path / "venv")] * 2 in spec.read_only
