"""Sub-agents and compaction in the real harnesses: the role of each call, and where its path branches."""

import re

import pytest

from db.models import ModelCallRow, RunConfigRow
from db.session import transaction
from gyre.contracts.engine import GenerateRequest
from tests.gateway.conftest import gateway_thread
from tests.harnesses.conftest import HarnessAttempt
from tests.harnesses.lineage import check_lineage
from tests.harnesses.programs import FIRST_TEST_S
from tests.harnesses.scripts import delegating, filling, tool_call

pytestmark = pytest.mark.timeout(FIRST_TEST_S)
CLAUDE_SUMMARY = "Your task is to create a detailed summary of"
SUBTASK = {"description": "sub", "prompt": "SUBTASK: write sub"}


def one(name: str):
    return pytest.mark.parametrize("harness", [name], indirect=True)


def known(call: ModelCallRow) -> int:
    """Count the tokens of the conversation that ends in a call's answer."""
    return call.num_input_tokens + call.num_output_tokens


def check_delegation(attempt: HarnessAttempt, num_agents: int = 1) -> None:
    """Check that the main task is one path, and each sub-agent one more, with its own root and two calls."""
    main, sub = attempt.calls("main"), attempt.calls("subagent")
    assert (attempt.workspace / "sub").read_text() == "sub\n" * num_agents
    assert len(sub) == 2 * num_agents
    check_lineage(attempt, main)
    assert sorted(call.num_reused_tokens > 0 for call in sub) == [False] * num_agents + [True] * num_agents
    assert len(attempt.leaves("main")) == 1
    assert len(attempt.leaves("subagent")) == num_agents
    assert not attempt.calls("main_summary", "subagent_summary")


def check_compaction(
    attempt: HarnessAttempt, prefix: str = "main"
) -> tuple[list[ModelCallRow], ModelCallRow, list[ModelCallRow]]:
    """Check for one summary, a path before it, and a path with its own root after it; return all three."""
    (summary,) = attempt.calls(f"{prefix}_summary")
    before = [call for call in attempt.calls(prefix) if call.index < summary.index]
    after = [call for call in attempt.calls(prefix) if call.index > summary.index]
    check_lineage(attempt, before)
    check_lineage(attempt, after)
    assert len(before) > 1
    assert after[0].num_reused_tokens == 0
    assert "KEYWORD" in attempt.engine.tokenizer.decode(attempt.engine.requests[after[0].index].input_ids)
    assert len(attempt.leaves(f"{prefix}_summary")) == 1
    # Where the summary continues the whole conversation, the path before it goes on into it.
    assert len(attempt.leaves(prefix)) == (1 if summary.num_reused_tokens == known(before[-1]) else 2)
    return before, summary, after


@one("claude-code")
@pytest.mark.parametrize("background", [True, False])
def test_claude_code_delegates(attempt: HarnessAttempt, background: bool) -> None:
    """In the background, the main task continues and gets the result in a later message."""
    wait = {} if background else {"run_in_background": False}
    agent = tool_call("Agent", SUBTASK | {"subagent_type": "general-purpose"} | wait)
    attempt.engine.script = delegating("claude-code", agent)
    assert attempt.run("MAIN: delegate", tools="Bash,Agent").exit_code == 0, attempt.output
    check_delegation(attempt)
    assert len(attempt.calls("main")) == (3 if background else 2)
    assert '"result":"MAINDONE"' in attempt.output


@one("claude-code")
def test_parallel_sub_agents_with_equal_prompts_stay_separate(attempt: HarnessAttempt) -> None:
    """With one conversation per session, sub-agents contaminated each other."""
    agent = tool_call("Agent", SUBTASK | {"subagent_type": "general-purpose", "run_in_background": False})
    attempt.engine.script = delegating("claude-code", f"{agent}\n{agent}")
    assert attempt.run("MAIN: delegate twice", tools="Bash,Agent").exit_code == 0, attempt.output
    check_delegation(attempt, num_agents=2)


@one("claude-code")
def test_claude_code_compacts_at_its_window(attempt: HarnessAttempt) -> None:
    attempt.engine.script = filling("claude-code", 25_000, CLAUDE_SUMMARY)
    assert attempt.run("MAIN: compact", compact_window="100000").exit_code == 0, attempt.output
    before, summary, _ = check_compaction(attempt)
    assert before[-1].num_input_tokens > 67_000
    # It requests the summary without the newest answer, which therefore is a leaf.
    assert summary.num_reused_tokens == known(before[-2])


@one("claude-code")
def test_claude_code_compacts_when_the_prompt_is_too_long(attempt_without_gateway: HarnessAttempt) -> None:
    attempt = attempt_without_gateway
    with transaction(attempt.world.database) as session:
        config = session.get_one(RunConfigRow, ("r", 0))
        config.resolved = config.resolved | {"model": config.resolved["model"] | {"context_tokens": 60_000}}
    attempt.engine.script = filling("claude-code", 15_000, CLAUDE_SUMMARY)
    with gateway_thread(attempt.world):
        assert attempt.run("MAIN: compact").exit_code == 0, attempt.output
    refused = [exchange for exchange in attempt.tap.exchanges() if exchange.status == 400]
    assert len(refused) == 1
    assert re.search(rb"prompt is too long: \d+ tokens > 59999 maximum", refused[0].response)
    before, summary, _ = check_compaction(attempt)
    assert summary.num_reused_tokens in {known(call) for call in before}


@one("claude-code")
def test_claude_codes_sub_agent_compacts(attempt: HarnessAttempt) -> None:
    agent = tool_call("Agent", SUBTASK | {"subagent_type": "general-purpose", "run_in_background": False})
    main, sub = delegating("claude-code", agent), filling("claude-code", 25_000, CLAUDE_SUMMARY)
    attempt.engine.script = lambda request, prompt: (main if "MAIN" in prompt else sub)(request, prompt)
    options = {"tools": "Bash,Agent", "compact_window": "100000"}
    assert attempt.run("MAIN: delegate", **options).exit_code == 0, attempt.output
    check_compaction(attempt, "subagent")
    check_lineage(attempt, attempt.calls("main"))
    assert len(attempt.leaves("main")) == 1


@one("codex")
def test_codex_delegates(attempt: HarnessAttempt) -> None:
    attempt.engine.script = codex_delegating
    assert attempt.run("MAIN: delegate", multi_agent="true").exit_code == 0, attempt.output
    check_delegation(attempt)
    assert "MAINDONE" in attempt.output


def codex_delegating(request: GenerateRequest, prompt: str) -> str:
    """Script a sub-agent that is awaited by the id which its start returned."""
    started = re.search(r'"agent_id": ?"([^"]+)"', prompt.rpartition("<tool_response>")[2])
    spawn = tool_call("multi_agent_v1__spawn_agent", {"message": SUBTASK["prompt"]})
    wait = {"targets": [started[1]] if started else [], "timeout_ms": 30_000}
    return delegating("codex", spawn, tool_call("multi_agent_v1__wait_agent", wait))(request, prompt)


@one("codex")
def test_codex_compacts(attempt: HarnessAttempt) -> None:
    attempt.engine.script = filling("codex", 5000, "You are performing a CONTEXT CHECKPOINT COMPACTION")
    assert attempt.run("MAIN: compact", context_tokens="14000").exit_code == 0, attempt.output
    _, summary, _ = check_compaction(attempt)
    # It requests the summary without tools, so that the prompt differs from its first token on.
    assert summary.num_reused_tokens == 0


@one("opencode")
def test_opencode_delegates_and_asks_for_a_title(attempt: HarnessAttempt) -> None:
    task = tool_call("task", SUBTASK | {"subagent_type": "general"})
    attempt.engine.script = delegating("opencode", task)
    assert attempt.run("MAIN: delegate", agent="build", title="").exit_code == 0, attempt.output
    check_delegation(attempt)
    assert attempt.roles().count("side") == 1


@one("opencode")
def test_opencode_compacts(attempt: HarnessAttempt) -> None:
    attempt.engine.script = filling("opencode", 9000, "Do not mention the summary process")
    assert attempt.run("MAIN: compact", context_tokens="45000").exit_code == 0, attempt.output
    check_compaction(attempt)


@one("qwen-code")
def test_qwen_code_delegates(attempt: HarnessAttempt) -> None:
    agent = tool_call("agent", SUBTASK | {"subagent_type": "general-purpose"})
    attempt.engine.script = delegating("qwen-code", agent)
    assert attempt.run("MAIN: delegate").exit_code == 0, attempt.output
    check_delegation(attempt)


@one("qwen-code")
def test_qwen_code_compacts(attempt: HarnessAttempt) -> None:
    attempt.engine.script = filling("qwen-code", 9000, "generate the <state_snapshot>")
    assert attempt.run("MAIN: compact", context_tokens="60000").exit_code == 0, attempt.output
    check_compaction(attempt)


@one("tiny")
def test_tiny_delegates(attempt: HarnessAttempt) -> None:
    attempt.engine.script = delegating("tiny", tool_call("agent", {"prompt": SUBTASK["prompt"]}))
    assert attempt.run("MAIN: delegate").exit_code == 0, attempt.output
    check_delegation(attempt)


@one("tiny")
def test_tiny_compacts(attempt: HarnessAttempt) -> None:
    attempt.engine.script = filling("tiny", 600, "Sum up what you need to go on")
    assert attempt.run("MAIN: compact").exit_code == 0, attempt.output
    before, summary, _ = check_compaction(attempt)
    assert summary.num_reused_tokens == known(before[-1])
