"""Where a real harness writes a sampled tool call anew, what was sampled is put back."""

import json

import pytest

from gyre.contracts.engine import GenerateRequest
from tests.harnesses.conftest import Stage
from tests.harnesses.lineage import check_lineage
from tests.harnesses.programs import FIRST_TEST_S
from tests.harnesses.scripts import num_results, tool_call

pytestmark = pytest.mark.timeout(FIRST_TEST_S)


@pytest.mark.parametrize("harness", ["claude-code"], indirect=True)
def test_claude_code_adds_to_the_input_of_edit(stage: Stage) -> None:
    """``replace_all`` is new, and comes first."""
    path = {"file_path": f"{stage.workspace_inside}/made"}
    calls = [
        tool_call("Write", path | {"content": "one\ntwo\n"}),
        tool_call("Read", path),
        tool_call("Edit", path | {"old_string": "two", "new_string": "“zwei”"}),
    ]

    def script(request: GenerateRequest, prompt: str) -> str:
        turn = num_results(prompt)
        return calls[turn] if turn < len(calls) else "Edited."

    stage.engine.script = script
    assert stage.run("MAIN: edit", tools="Read,Write,Edit").exit_code == 0, stage.output
    assert (stage.workspace / "made").read_text() == "one\n“zwei”\n"
    said = [block for message in stage.answers()[-1].body["messages"] for block in message["content"]]
    edited = [block["input"] for block in said if isinstance(block, dict) and block.get("name") == "Edit"]
    assert [list(given) for given in edited] == [["replace_all", "file_path", "old_string", "new_string"]]
    check_lineage(stage, stage.world.calls())
    assert len(stage.world.leaves()) == 1
    assert "replace_all" not in json.dumps(stage.world.calls()[2].response)
