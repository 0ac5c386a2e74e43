"""The words of the tiny harness that the policy is taught to answer; examples/tiny_harness says them."""

from typing import Any

SUMMARY_REQUEST = "Sum up what you need to go on: all but the task and your summary will be forgotten."
SUMMARY_HEAD = "\nSummary of the work so far: "


def _tool(name: str, parameter: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {parameter: {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


SHELL, AGENT = _tool("shell", "command"), _tool("agent", "prompt")
"""What the chat template shows of them is their names and parameters."""
