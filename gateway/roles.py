"""What a call is for, by the best evidence there is: headers of known harnesses, then its words."""

from collections.abc import Mapping

from gyre.trajectory.canonical import CanonicalRequest

SUBAGENT_HEADERS = ("x-claude-code-agent-id", "x-openai-subagent", "x-parent-session-id")
SESSION_HEADERS = ("x-claude-code-session-id", "x-session-affinity")
"""Their harnesses give every working call tools; a call without any is a title or a probe."""
SUMMARY_REQUEST = "Your task is to create a detailed summary of"
"""Claude Code's compaction prompt, in the last message of its request."""


def call_role(headers: Mapping[str, str], request: CanonicalRequest) -> str:
    """``main``, ``main_summary``, ``subagent``, ``subagent_summary`` or ``side`` (untrained by default)."""
    if not request.tools and any(name in headers for name in SESSION_HEADERS):
        return "side"
    who = "subagent" if any(name in headers for name in SUBAGENT_HEADERS) else "main"
    last = request.messages[-1]
    summary = last.role == "user" and SUMMARY_REQUEST in last.text
    return f"{who}_summary" if summary else who
