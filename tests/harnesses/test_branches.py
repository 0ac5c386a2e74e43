"""Sub-agents and compaction in the real harnesses: which call is what, and where its path branches."""

import re

import pytest

from db.models import ModelCallRow, RunConfigRow
from db.session import transaction
from gyre.contracts.engine import GenerateRequest
from tests.gateway.conftest import gateway_thread
from tests.harnesses.conftest import Stage
from tests.harnesses.lineage import check_lineage
from tests.harnesses.programs import FIRST_TEST_S
from tests.harnesses.scripts import delegating, filling, tool_call

pytestmark = pytest.mark.timeout(FIRST_TEST_S)
CLAUDE_SUMMARY = "Your task is to create a detailed summary of"
SUBTASK = {"description": "sub", "prompt": "SUBTASK: write sub"}


def one(name: str):
    return pytest.mark.parametrize("harness", [name], indirect=True)


def known(call: ModelCallRow) -> int:
    """Tokens of the conversation that ends in a call's answer."""
    return call.num_input_tokens + call.num_output_tokens


def check_delegation(stage: Stage, num_agents: int = 1) -> None:
    """The main task is one path; each sub-agent is one of its own, from a root, with two calls."""
    main, sub = stage.calls("main"), stage.calls("subagent")
    assert (stage.workspace / "sub").read_text() == "sub\n" * num_agents
    assert len(sub) == 2 * num_agents
    check_lineage(stage, main)
    assert sorted(call.num_reused_tokens > 0 for call in sub) == [False] * num_agents + [True] * num_agents
    assert len(stage.leaves("main")) == 1
    assert len(stage.leaves("subagent")) == num_agents
    assert not stage.calls("main_summary", "subagent_summary")


def check_compaction(
    stage: Stage, prefix: str = "main"
) -> tuple[list[ModelCallRow], ModelCallRow, list[ModelCallRow]]:
    """One summary; a path before it and, from a root of its own, one after it. Returns all three."""
    (summary,) = stage.calls(f"{prefix}_summary")
    before = [call for call in stage.calls(prefix) if call.index < summary.index]
    after = [call for call in stage.calls(prefix) if call.index > summary.index]
    check_lineage(stage, before)
    check_lineage(stage, after)
    assert len(before) > 1
    assert after[0].num_reused_tokens == 0
    assert "KEYWORD" in stage.engine.tokenizer.decode(stage.engine.requests[after[0].index].input_ids)
    assert len(stage.leaves(f"{prefix}_summary")) == 1
    # Where the summary continues the whole conversation, the path before it goes on into it.
    assert len(stage.leaves(prefix)) == (1 if summary.num_reused_tokens == known(before[-1]) else 2)
    return before, summary, after


@one("claude-code")
@pytest.mark.parametrize("background", [True, False])
def test_claude_code_delegates(stage: Stage, background: bool) -> None:
    """In the background the main task goes on meanwhile, and hears of the end in a message of its own."""
    wait = {} if background else {"run_in_background": False}
    agent = tool_call("Agent", SUBTASK | {"subagent_type": "general-purpose"} | wait)
    stage.engine.script = delegating("claude-code", agent)
    assert stage.run("MAIN: delegate", tools="Bash,Agent").exit_code == 0, stage.output
    check_delegation(stage)
    assert len(stage.calls("main")) == (3 if background else 2)
    assert '"result":"MAINDONE"' in stage.output


@one("claude-code")
def test_b2_parallel_sub_agents_with_equal_prompts_stay_apart(stage: Stage) -> None:
    agent = tool_call("Agent", SUBTASK | {"subagent_type": "general-purpose", "run_in_background": False})
    stage.engine.script = delegating("claude-code", f"{agent}\n{agent}")
    assert stage.run("MAIN: delegate twice", tools="Bash,Agent").exit_code == 0, stage.output
    check_delegation(stage, num_agents=2)


@one("claude-code")
def test_claude_code_compacts_at_its_window(stage: Stage) -> None:
    stage.engine.script = filling("claude-code", 25_000, CLAUDE_SUMMARY)
    assert stage.run("MAIN: compact", compact_window="100000").exit_code == 0, stage.output
    before, summary, _ = check_compaction(stage)
    assert before[-1].num_input_tokens > 67_000
    # It asks for the summary without the newest answer, so that this one's path ends there.
    assert summary.num_reused_tokens == known(before[-2])


@one("claude-code")
def test_claude_code_compacts_when_the_prompt_is_too_long(lone_stage: Stage) -> None:
    stage = lone_stage
    with transaction(stage.world.database) as session:
        config = session.get_one(RunConfigRow, ("r", 0))
        config.resolved = config.resolved | {"model": config.resolved["model"] | {"context_tokens": 60_000}}
    stage.engine.script = filling("claude-code", 15_000, CLAUDE_SUMMARY)
    with gateway_thread(stage.world):
        assert stage.run("MAIN: compact").exit_code == 0, stage.output
    refused = [exchange for exchange in stage.tap.exchanges() if exchange.status == 400]
    assert len(refused) == 1
    assert re.search(rb"prompt is too long: \d+ tokens > 59999 maximum", refused[0].response)
    before, summary, _ = check_compaction(stage)
    assert summary.num_reused_tokens in {known(call) for call in before}


@one("claude-code")
def test_claude_codes_sub_agent_compacts(stage: Stage) -> None:
    agent = tool_call("Agent", SUBTASK | {"subagent_type": "general-purpose", "run_in_background": False})
    main, sub = delegating("claude-code", agent), filling("claude-code", 25_000, CLAUDE_SUMMARY)
    stage.engine.script = lambda request, prompt: (main if "MAIN" in prompt else sub)(request, prompt)
    options = {"tools": "Bash,Agent", "compact_window": "100000"}
    assert stage.run("MAIN: delegate", **options).exit_code == 0, stage.output
    check_compaction(stage, "subagent")
    check_lineage(stage, stage.calls("main"))
    assert len(stage.leaves("main")) == 1


@one("codex")
def test_codex_delegates(stage: Stage) -> None:
    stage.engine.script = codex_delegating
    assert stage.run("MAIN: delegate", multi_agent="true").exit_code == 0, stage.output
    check_delegation(stage)
    assert "MAINDONE" in stage.output


def codex_delegating(request: GenerateRequest, prompt: str) -> str:
    """The agent's name is in what its start gave back."""
    started = re.search(r'"agent_id": ?"([^"]+)"', prompt.rpartition("<tool_response>")[2])
    spawn = tool_call("multi_agent_v1__spawn_agent", {"message": SUBTASK["prompt"]})
    wait = {"targets": [started[1]] if started else [], "timeout_ms": 30_000}
    return delegating("codex", spawn, tool_call("multi_agent_v1__wait_agent", wait))(request, prompt)


@one("codex")
def test_codex_compacts(stage: Stage) -> None:
    stage.engine.script = filling("codex", 5000, "You are performing a CONTEXT CHECKPOINT COMPACTION")
    assert stage.run("MAIN: compact", context_tokens="14000").exit_code == 0, stage.output
    _, summary, _ = check_compaction(stage)
    # It offers no tools for it: another prompt from the start.
    assert summary.num_reused_tokens == 0


@one("opencode")
def test_opencode_delegates_and_asks_for_a_title(stage: Stage) -> None:
    task = tool_call("task", SUBTASK | {"subagent_type": "general"})
    stage.engine.script = delegating("opencode", task)
    assert stage.run("MAIN: delegate", agent="build", title="").exit_code == 0, stage.output
    check_delegation(stage)
    assert stage.roles().count("side") == 1


@one("opencode")
def test_opencode_compacts(stage: Stage) -> None:
    stage.engine.script = filling("opencode", 9000, "Do not mention the summary process")
    assert stage.run("MAIN: compact", context_tokens="45000").exit_code == 0, stage.output
    check_compaction(stage)


@one("qwen-code")
def test_qwen_code_delegates(stage: Stage) -> None:
    agent = tool_call("agent", SUBTASK | {"subagent_type": "general-purpose"})
    stage.engine.script = delegating("qwen-code", agent)
    assert stage.run("MAIN: delegate").exit_code == 0, stage.output
    check_delegation(stage)


@one("qwen-code")
def test_qwen_code_compacts(stage: Stage) -> None:
    stage.engine.script = filling("qwen-code", 9000, "generate the <state_snapshot>")
    assert stage.run("MAIN: compact", context_tokens="60000").exit_code == 0, stage.output
    check_compaction(stage)


@one("tiny")
def test_tiny_delegates(stage: Stage) -> None:
    stage.engine.script = delegating("tiny", tool_call("agent", {"prompt": SUBTASK["prompt"]}))
    assert stage.run("MAIN: delegate").exit_code == 0, stage.output
    check_delegation(stage)


@one("tiny")
def test_tiny_compacts(stage: Stage) -> None:
    stage.engine.script = filling("tiny", 600, "Sum up what you need to go on")
    assert stage.run("MAIN: compact").exit_code == 0, stage.output
    before, summary, _ = check_compaction(stage)
    assert summary.num_reused_tokens == known(before[-1])
