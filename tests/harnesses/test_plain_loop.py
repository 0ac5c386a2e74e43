"""Thirty turns of a plain tool loop in each real harness: one leaf, and no text that was not sampled."""

import hashlib
import json

import pytest

from tests.harnesses.conftest import HarnessAttempt
from tests.harnesses.lineage import check_lineage, unpacked
from tests.harnesses.programs import FIRST_TEST_S
from tests.harnesses.scripts import ONE_PATH, SHELLS, loop, split_sampled
from tests.harnesses.wire import Heard, heard

pytestmark = pytest.mark.timeout(FIRST_TEST_S)
TURNS = 30
EVERYTHING = {
    "claude-code": {"tools": "", "system_prompt": ""},
    "codex": {"instructions": "", "multi_agent": "true"},
    "opencode": {"agent": "build", "title": ""},
    "qwen-code": {"tools": "", "system_prompt": ""},
    **ONE_PATH,
}
"""Options that let a harness send everything: all tools, reminders, and OpenCode's call for a title."""


@pytest.mark.parametrize("options", [ONE_PATH, EVERYTHING], ids=["catalogue", "everything"])
@pytest.mark.parametrize("harness", sorted(SHELLS), indirect=True)
def test_thirty_turns_make_one_leaf(
    attempt: HarnessAttempt, harness: str, options: dict[str, dict[str, str]]
) -> None:
    """Elsewhere one loop became many samples: lost reasoning or cache markers changed the prefix."""
    attempt.engine.script = loop(harness, TURNS)
    status = attempt.run("Write thirty lines into the file made.", **options.get(harness, {}))
    assert status.exit_code == 0, attempt.output
    assert len((attempt.workspace / "made").read_text().splitlines()) == TURNS - 1
    check_one_path(attempt)
    check_that_all_was_sampled(attempt)
    # Claude Code's header changes with each of its versions.
    assert "x-anthropic-billing-header" not in attempt.engine.tokenizer.decode(
        attempt.engine.requests[0].input_ids
    )
    sides = int(harness == "opencode" and options is EVERYTHING)
    assert attempt.roles().count("side") == sides
    assert len(attempt.world.leaves()) == 1 + sides


def check_one_path(attempt: HarnessAttempt) -> None:
    """Check for one leaf, and that each main call sends everything the one before it sent and sampled."""
    calls = attempt.calls("main")
    assert len(calls) == TURNS
    assert len(attempt.leaves("main")) == 1
    check_lineage(attempt, calls)


def check_that_all_was_sampled(attempt: HarnessAttempt) -> None:
    """Check that every answer on the wire is exactly what the recorded ids of its call decode to."""
    answers = [heard(attempt.adapter.dialect, exchange) for exchange in attempt.answers()]
    recorded = recorded_answers(attempt)
    assert len(answers) == len(attempt.world.calls())
    for answer in answers:
        assert parsed(answer) == split_sampled(recorded[answer.id.rpartition("_")[2].rpartition("-")[2]])


def parsed(answer: Heard) -> tuple[str, str, list]:
    calls = [(name, json.loads(arguments, object_pairs_hook=list)) for name, arguments in answer.calls]
    return answer.reasoning, answer.text, calls


def recorded_answers(attempt: HarnessAttempt) -> dict[str, str]:
    """Map the end of each answer's wire id to the decoded ids of its call, without the stop token."""
    ids = {node.id: unpacked(node.token_ids) for node in attempt.world.nodes()}
    stop = attempt.engine.tokenizer.eos_token_id
    texts = {}
    for call in attempt.world.calls():
        sampled = ids[call.sampled_node_id]
        assert sampled[-1] == stop
        name = hashlib.sha256(call.id.encode()).hexdigest()[:24]
        texts[name] = attempt.engine.tokenizer.decode(sampled[:-1], skip_special_tokens=False)
    return texts
