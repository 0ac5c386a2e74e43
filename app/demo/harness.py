"""Texts and tools of examples/tiny_harness that the warm-up teaches the policy to answer."""

from typing import Any

SUMMARY_REQUEST = "Sum up what you need to go on: all but the task and your summary will be forgotten."
SUMMARY_HEAD = "\nSummary of the work so far: "


def _tool(name: str, parameter: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {parameter: {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


SHELL, AGENT = _tool("shell", "command"), _tool("agent", "prompt")
"""The chat template renders no more of a tool than its name and its parameters."""
