"""What a call is for."""

import pytest

from gateway.roles import call_role
from gyre.trajectory.dialects import from_anthropic

CLAUDE = {"x-claude-code-session-id": "s"}
SUBAGENT = CLAUDE | {"x-claude-code-agent-id": "a"}
SUMMARY = "Your task is to create a detailed summary of the conversation so far."


@pytest.mark.parametrize(
    ("headers", "text", "tools", "role"),
    [
        ({}, "x", False, "main"),
        (CLAUDE, "x", True, "main"),
        (CLAUDE, "x", False, "side"),
        (CLAUDE, SUMMARY, True, "main_summary"),
        (SUBAGENT, "x", True, "subagent"),
        (SUBAGENT, SUMMARY, True, "subagent_summary"),
        ({"x-session-affinity": "s", "x-parent-session-id": "p"}, "x", True, "subagent"),
    ],
)
def test_roles(headers: dict[str, str], text: str, tools: bool, role: str) -> None:
    listed = [{"name": "t", "input_schema": {}}] if tools else []
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "tools": listed}
    assert call_role(headers, from_anthropic(body)) == role
