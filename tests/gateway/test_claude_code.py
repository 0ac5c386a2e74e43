"""Real Claude Code against the gateway over the scripted engine."""

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from gyre.contracts.engine import GenerateRequest
from tests.gateway.conftest import World
from tests.gateway.scripted_engine import ScriptedEngine

TOOL_CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "echo -n hi > made.txt"}}\n</tool_call>'


def run_claude(program: Path, world: World, workspace: Path, prompt: str) -> dict:
    home = world.folder / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "ANTHROPIC_BASE_URL": world.url,
        "ANTHROPIC_API_KEY": world.token,
    }
    options = ["--model", "policy", "--dangerously-skip-permissions", "--output-format", "json"]
    ended = subprocess.run(
        [str(program), "-p", prompt, *options],
        env=environment,
        cwd=workspace,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("turns", [2, 5])
def test_a4_claude_code_makes_one_path(
    claude_code: Path, gateway: World, engine: ScriptedEngine, tmp_path: Path, turns: int
) -> None:
    """Also A16 and A18: the billing header and wandering cache marks do not break the prefix."""

    def script(request: GenerateRequest, prompt: str) -> str:
        return TOOL_CALL if prompt.count("<tool_response>") < turns - 1 else "The file is written."

    engine.script = script
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    result = run_claude(claude_code, gateway, workspace, "Write hi into made.txt")
    assert (workspace / "made.txt").read_text() == "hi"
    assert result["result"] == "The file is written."
    calls = [call for call in gateway.calls() if call.role == "main"]
    assert len(calls) == turns
    assert len(gateway.leaves()) == 1
    for before, after in pairwise(calls):
        assert after.num_reused_tokens == before.num_input_tokens + before.num_output_tokens
    assert "x-anthropic-billing-header" not in engine.tokenizer.decode(engine.requests[0].input_ids)
