"""Thirty turns of a plain tool loop in each real harness: one leaf, nothing heard but what was sampled."""

import hashlib
import json

import pytest

from tests.harnesses.conftest import Stage
from tests.harnesses.lineage import check_lineage, unpacked
from tests.harnesses.programs import FIRST_TEST_S
from tests.harnesses.scripts import ONE_PATH, SHELLS, loop, spoken
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
"""Everything that a harness sends if one lets it: all tools, reminders, and OpenCode's call for a title."""


@pytest.mark.parametrize("options", [ONE_PATH, EVERYTHING], ids=["catalogue", "everything"])
@pytest.mark.parametrize("harness", sorted(SHELLS), indirect=True)
def test_a4_thirty_turns_make_one_leaf(
    stage: Stage, harness: str, options: dict[str, dict[str, str]]
) -> None:
    """Also A1, A3, A16 and A18: stop tokens, spellings, billing headers and cache marks break no prefix."""
    stage.engine.script = loop(harness, TURNS)
    status = stage.run("Write thirty lines into the file made.", **options.get(harness, {}))
    assert status.exit_code == 0, stage.output
    assert len((stage.workspace / "made").read_text().splitlines()) == TURNS - 1
    check_one_path(stage)
    check_that_all_was_sampled(stage)
    # Claude Code's own, and new in each of its versions.
    assert "x-anthropic-billing-header" not in stage.engine.tokenizer.decode(
        stage.engine.requests[0].input_ids
    )
    sides = int(harness == "opencode" and options is EVERYTHING)
    assert stage.roles().count("side") == sides
    assert len(stage.world.leaves()) == 1 + sides


def check_one_path(stage: Stage) -> None:
    """One leaf, and each call of the main task sends all that the one before it sent and sampled."""
    calls = stage.calls("main")
    assert len(calls) == TURNS
    assert len(stage.leaves("main")) == 1
    check_lineage(stage, calls)


def check_that_all_was_sampled(stage: Stage) -> None:
    """Every answer on the wire says what the recorded ids of its call decode to, and nothing else."""
    answers = [heard(stage.adapter.dialect, exchange) for exchange in stage.answers()]
    recorded = recorded_answers(stage)
    assert len(answers) == len(stage.world.calls())
    for answer in answers:
        assert understood(answer) == spoken(recorded[answer.id.rpartition("_")[2].rpartition("-")[2]])


def understood(answer: Heard) -> tuple[str, str, list]:
    calls = [(name, json.loads(arguments, object_pairs_hook=list)) for name, arguments in answer.calls]
    return answer.reasoning, answer.text, calls


def recorded_answers(stage: Stage) -> dict[str, str]:
    """How the name of an answer on the wire ends -> the decoded ids of its call, stop token left out."""
    ids = {node.id: unpacked(node.token_ids) for node in stage.world.nodes()}
    stop = stage.engine.tokenizer.eos_token_id
    texts = {}
    for call in stage.world.calls():
        sampled = ids[call.sampled_node_id]
        assert sampled[-1] == stop
        name = hashlib.sha256(call.id.encode()).hexdigest()[:24]
        texts[name] = stage.engine.tokenizer.decode(sampled[:-1], skip_special_tokens=False)
    return texts
