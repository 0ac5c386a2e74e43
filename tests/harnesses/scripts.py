"""Scripts of a policy: sampled text in the Hermes form, full of what is hard to pass on unchanged."""

import json
import re
from collections.abc import Callable
from typing import Any

from gyre.contracts.engine import GenerateRequest

Script = Callable[[GenerateRequest, str], str]

SHELLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "claude-code": ("Bash", "command", {"description": "a naïve “step”"}),
    "codex": ("exec_command", "cmd", {}),
    "mini-swe-agent": ("bash", "command", {}),
    "opencode": ("bash", "command", {"description": "a naïve “step”"}),
    "qwen-code": ("run_shell_command", "command", {"is_background": False}),
    "tiny": ("shell", "command", {}),
}
"""Harness -> its shell tool, the name of the command's argument, and further arguments."""
ONE_PATH: dict[str, dict[str, str]] = {"tiny": {"max_turns": "40", "compact_chars": "100000"}}
"""Options without which a longer loop would be cut or compacted."""
MINI_ENDS = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def tool_call(name: str, arguments: dict[str, Any]) -> str:
    # Spaced as no serializer does it, so that sampled text differs from what a harness writes.
    text = json.dumps(arguments, ensure_ascii=False, separators=(" ,", ": "))
    return f'<tool_call>\n{{"name":"{name}" , "arguments": {text}}}\n</tool_call>'


def shell(harness: str, command: str) -> str:
    """Write a call of the harness's shell."""
    name, argument, others = SHELLS[harness]
    return tool_call(name, {argument: command, **others})


def num_results(prompt: str) -> int:
    """Count the tool results in a conversation."""
    return prompt.count("<tool_response>")


def loop(harness: str, turns: int) -> Script:
    """Script a plain tool loop: ``turns`` answers, each but the last adds a line to ``made`` by the shell."""

    def script(request: GenerateRequest, prompt: str) -> str:
        turn = num_results(prompt) + 1
        if turn < turns:
            text = f"<think>\nStep {turn}: “über” \\n {{}} 😀\n</think>\n\nNow  {turn}, <b>&amp;</b>\tß.\n"
            return text + shell(harness, f'printf "%s\\\\n" \'{turn} ü "q" \\n\' >> made; tail -n 1 made')
        if harness == "mini-swe-agent":
            return "That is all. " + shell(harness, MINI_ENDS)
        return "<think>Enough.</think>All lines are\nwritten: “done”."

    return script


def delegating(harness: str, *calls: str) -> Script:
    """Script a main task that makes these calls, one per turn; each sub-agent writes ``sub`` and reports.

    The instruction of the main task contains MAIN, which a sub-agent's prompt must not.
    """

    def script(request: GenerateRequest, prompt: str) -> str:
        turn = num_results(prompt)
        if "MAIN" not in prompt:
            return "<think>Done</think>SUBDONE" if turn else shell(harness, "echo sub >> sub")
        return calls[turn] if turn < len(calls) else "MAINDONE"

    return script


def filling(harness: str, num_bytes: int, summary_request: str) -> Script:
    """Script shell calls that print much until a summary is requested; its KEYWORD ends the work."""

    def script(request: GenerateRequest, prompt: str) -> str:
        if summary_request in prompt.rpartition("<|im_start|>user")[2]:
            return "<think>What matters?</think><summary>\nThe KEYWORD so far\n</summary>"
        if "KEYWORD" in prompt:
            return "All is done."
        return shell(harness, f"head -c {num_bytes} /dev/zero | tr '\\0' x; echo; echo {num_results(prompt)}")

    return script


THOUGHT = re.compile(r"\s*<think>(.*?)</think>", re.DOTALL)
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def split_sampled(sampled: str) -> tuple[str, str, list[tuple[str, Any]]]:
    """Split a sampled text into reasoning, text and calls; arguments are pairs, so that order counts."""
    thought = THOUGHT.match(sampled)
    rest = sampled[thought.end() :] if thought else sampled
    calls = [json.loads(found, object_pairs_hook=list) for found in CALL.findall(rest)]
    named = [(dict(call)["name"], dict(call)["arguments"]) for call in calls]
    return thought[1].strip() if thought else "", CALL.sub("", rest).strip(), named
