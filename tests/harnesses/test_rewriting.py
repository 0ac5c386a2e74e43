"""Where a real harness rewrites a sampled tool call, the sampled one is restored."""

import json

import pytest

from gyre.contracts.engine import GenerateRequest
from tests.harnesses.conftest import HarnessAttempt
from tests.harnesses.lineage import check_lineage
from tests.harnesses.programs import FIRST_TEST_S
from tests.harnesses.scripts import num_results, tool_call

pytestmark = pytest.mark.timeout(FIRST_TEST_S)


@pytest.mark.parametrize("harness", ["claude-code"], indirect=True)
def test_claude_code_adds_to_the_input_of_edit(attempt: HarnessAttempt) -> None:
    """It adds ``replace_all`` as the first argument."""
    path = {"file_path": f"{attempt.workspace_inside}/made"}
    calls = [
        tool_call("Write", path | {"content": "one\ntwo\n"}),
        tool_call("Read", path),
        tool_call("Edit", path | {"old_string": "two", "new_string": "“zwei”"}),
    ]

    def script(request: GenerateRequest, prompt: str) -> str:
        turn = num_results(prompt)
        return calls[turn] if turn < len(calls) else "Edited."

    attempt.engine.script = script
    assert attempt.run("MAIN: edit", tools="Read,Write,Edit").exit_code == 0, attempt.output
    assert (attempt.workspace / "made").read_text() == "one\n“zwei”\n"
    sent = [block for message in attempt.answers()[-1].body["messages"] for block in message["content"]]
    edited = [block["input"] for block in sent if isinstance(block, dict) and block.get("name") == "Edit"]
    assert [list(arguments) for arguments in edited] == [
        ["replace_all", "file_path", "old_string", "new_string"]
    ]
    check_lineage(attempt, attempt.world.calls())
    assert len(attempt.world.leaves()) == 1
    assert "replace_all" not in json.dumps(attempt.world.calls()[2].response)
