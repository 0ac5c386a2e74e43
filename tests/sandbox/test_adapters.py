"""The catalogue: adapters are valid, refuse unknown options, and render a runnable spec."""

import os
import stat
from pathlib import Path

import pytest

from gyre.contracts.errors import BadInput
from sandbox import adapters, isolation
from sandbox.harness_process import Limits, kill, start_or_attach
from tests.sandbox.conftest import Gateway, calls_shell, needs_bwrap, says, wait_exited


def launch(directory: Path, gateway: str = "/no/socket", **changes: object) -> adapters.Launch:
    (directory / "workspace").mkdir(parents=True)
    given = {
        "directory": directory, "instruction": "write {token} to a file", "token": "gy-token",
        "gateway_socket": gateway, "gateway_url": "http://127.0.0.1:9", "time_limit_s": 30.0,
        "limits": Limits(), "context_tokens": 4000, "max_tokens": 500,
    }  # fmt: skip
    return adapters.Launch(**(given | changes))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("path", sorted(adapters.CATALOGUE.glob("*.toml")), ids=lambda path: path.stem)
def test_every_adapter_of_the_catalogue_loads_and_passes_the_token(path: Path) -> None:
    adapter = adapters.load_adapter(path.stem)
    assert adapter.name == path.stem
    assert "{token}" in "".join([*adapter.environment.values(), *adapter.files.values()])
    # Every user of a machine can read a command line.
    assert "{token}" not in str(adapter.command)
    assert (adapter.binary is None) == (adapter.version is None) == (adapter.package is None)


def test_unknown_adapters_and_options_are_named_with_what_is_allowed() -> None:
    with pytest.raises(BadInput, match=r"'nope'.*claude-code, codex, .*, tiny"):
        adapters.check_harness("nope", {})
    with pytest.raises(BadInput, match=r"'harness.options.turns'.*max_turns"):
        adapters.check_harness("tiny", {"turns": "3"})
    with pytest.raises(BadInput, match=r"no program '/no/claude' \(npm install -g .*claude-code@2"):
        adapters.check_harness("claude-code", {"binary": "/no/claude"})
    with pytest.raises(BadInput, match=r"does not exist: /no/folder"):
        adapters.check_harness("tiny", {"folder": "/no/folder"})
    with pytest.raises(BadInput, match=r"pip install mini-swe-agent==2"):
        adapters.check_harness("mini-swe-agent", {"binary": "/no/mini"})
    adapters.check_harness("tiny", {"max_turns": "3"})


def test_an_adapter_with_an_unknown_placeholder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.toml").write_text(
        'name = "odd"\ndialect = "openai"\ncommand = ["x", "{options.missing}"]\n[environment]\n'
    )
    monkeypatch.setattr(adapters, "CATALOGUE", tmp_path)
    with pytest.raises(BadInput, match=r"options\.missing"):
        adapters.load_adapter("odd")


def test_a_misspelled_option_in_a_file_is_refused_and_other_braces_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = 'dialect = "openai"\ncommand = ["x"]\n[environment]\n[options]\nsize = "3"\n[files]\n'
    for name, text in (
        ("odd", "{options.sise}"),
        ("mounted", "{mounts.x}"),
        ("plain", "{own} {options.size}"),
    ):
        (tmp_path / f"{name}.toml").write_text(f'name = \'{name}\'\n{head}"a.conf" = "{text}"\n')
    monkeypatch.setattr(adapters, "CATALOGUE", tmp_path)
    with pytest.raises(BadInput, match=r"unknown placeholder \{options\.sise\}"):
        adapters.load_adapter("odd")
    with pytest.raises(BadInput, match=r"unknown placeholder \{mounts\.x\}"):
        adapters.load_adapter("mounted")
    assert adapters.load_adapter("plain").files == {"a.conf": "{own} {options.size}"}


def test_arguments_and_variables_that_name_an_empty_option_are_left_out(tmp_path: Path) -> None:
    adapter = adapters.Adapter(
        name="odd",
        dialect="openai",
        command=[
            "run",
            ["--tools", "{options.tools}"],
            ["--size", "{options.size}-{model}"],
            "{options.tools}",
        ],
        environment={"TOOLS": "{options.tools}", "SIZE": "{options.size}", "EMPTY": ""},
        options={"tools": "", "size": "3"},
    )
    spec = adapters.render(adapter, {}, launch(tmp_path / "a"))
    assert spec.argv == ["run", "--size", "3-policy"]
    assert (spec.env.get("TOOLS"), spec.env["SIZE"], spec.env["EMPTY"]) == (None, "3", "")
    spec = adapters.render(adapter, {"tools": "Bash", "size": ""}, launch(tmp_path / "b"))
    assert spec.argv == ["run", "--tools", "Bash", "Bash"]


def test_placeholders_are_filled_once_and_never_inside_filled_text(tmp_path: Path) -> None:
    spec = adapters.render(adapters.load_adapter("tiny"), {"max_turns": "3"}, launch(tmp_path / "a"))
    assert spec.argv[spec.argv.index("--max-turns") + 1] == "3"
    assert spec.argv[spec.argv.index("--output-chars") + 1] == "1200"
    assert (tmp_path / "a" / "instruction.md").read_text() == "write {token} to a file"
    assert spec.env["OPENAI_API_KEY"] == "gy-token"
    assert "gy-token" not in " ".join(spec.argv)


def test_claude_code_is_found_mounted_and_given_the_gateway_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("claude", "node"):
        program = tmp_path / "tools" / name / "bin" / name
        program.parent.mkdir(parents=True)
        program.write_text("#!/usr/bin/env node\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    adapter = adapters.load_adapter("claude-code")
    spec = adapters.render(adapter, {}, launch(tmp_path / "a"))
    assert spec.argv[:3] == [spec.argv[0], "-p", "write {token} to a file"]
    assert spec.env["IS_SANDBOX"] == "1"
    assert spec.limits.address_space is False
    assert (tmp_path / "a" / "home" / ".claude.json").exists()
    if isolation.probe() != isolation.PLAIN:
        assert spec.argv[0] == "/harness/binary/claude"
        assert [str(tmp_path / "tools" / "claude" / "bin"), "/harness/binary"] in spec.read_only
        assert spec.env["PATH"].startswith("/harness/node/bin:")
        assert spec.env["ANTHROPIC_BASE_URL"] == f"http://127.0.0.1:{isolation.PORT}"


@needs_bwrap
def test_the_tiny_harness_works_through_its_adapter(tmp_path: Path, gateway: Gateway) -> None:
    gateway.script = [calls_shell("echo hello > out; cat out"), says("done")]
    spec = adapters.render(adapters.load_adapter("tiny"), {}, launch(tmp_path / "a", str(gateway.path)))
    start_or_attach(spec)
    status = wait_exited(spec.directory)
    assert (status.exit_code, status.failure) == (0, None)
    assert (tmp_path / "a" / "workspace" / "out").read_text() == "hello\n"
    assert gateway.keys == ["Bearer gy-token"] * 2
    assert stat.S_IMODE((tmp_path / "a" / "spec.json").stat().st_mode) == 0o600
    kill(spec.directory)
