"""Each real harness with the options of its catalogue file, while its gateway is killed: it never notices."""

from collections.abc import Callable

import pytest

from gyre.contracts.engine import GenerateRequest
from tests.gateway.conftest import gateway_process, wait_until
from tests.harnesses.conftest import Stage
from tests.harnesses.lineage import check_lineage
from tests.harnesses.programs import FIRST_TEST_S
from tests.harnesses.scripts import ONE_PATH, SHELLS, loop, num_results

pytestmark = pytest.mark.timeout(FIRST_TEST_S)
TURNS = 6
STOPPED_AT = 3
"""Tool results before the call that is under way when the gateway is killed."""
SHORT = {
    "claude-code": 4_000,
    "codex": 10_000,
    "mini-swe-agent": 4_000,
    "opencode": 7_000,
    "qwen-code": 35_000,
    "tiny": 1_000,
}
"""What the catalogue's options keep the first prompt below, in tokens of the tests' byte-level tokenizer."""


@pytest.mark.parametrize("harness", sorted(SHELLS), indirect=True)
def test_c1_a_killed_gateway_costs_a_harness_nothing(lone_stage: Stage, harness: str) -> None:
    """The call under way keeps its place: the next gateway finishes it, and no other is made for it."""
    stage = lone_stage
    stage.tapped = False
    stage.engine.script = closing_gate(stage, loop(harness, TURNS))
    with gateway_process(stage.world) as gateway:
        stage.start("Write lines into the file made.", **ONE_PATH.get(harness, {}))
        wait_until(lambda: not stage.engine.gate.is_set())
        wait_until(lambda: len(stage.engine.requests) == STOPPED_AT + 1)
        gateway.kill()
        gateway.wait()
    stage.engine.gate.set()
    with gateway_process(stage.world):
        assert stage.wait().exit_code == 0, stage.output
    assert len((stage.workspace / "made").read_text().splitlines()) == TURNS - 1
    calls = stage.world.calls()
    assert [(call.status, call.role) for call in calls] == [("committed", "main")] * TURNS
    check_lineage(stage, calls)
    assert calls[0].num_input_tokens < SHORT[harness]
    assert len(stage.world.leaves()) == 1


def closing_gate(stage: Stage, script: Callable[[GenerateRequest, str], str]):
    """The script, which lets no answer out after a certain one, until somebody opens the gate."""

    def closing(request: GenerateRequest, prompt: str) -> str:
        if num_results(prompt) == STOPPED_AT - 1:
            stage.engine.gate.clear()
        return script(request, prompt)

    return closing
