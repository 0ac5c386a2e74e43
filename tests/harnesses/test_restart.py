"""Each real harness, with the options of its catalogue file, survives a kill of its gateway."""

from collections.abc import Callable

import pytest

from gyre.contracts.engine import GenerateRequest
from tests.gateway.conftest import gateway_process, wait_until
from tests.harnesses.conftest import HarnessAttempt
from tests.harnesses.lineage import check_lineage
from tests.harnesses.programs import FIRST_TEST_S
from tests.harnesses.scripts import ONE_PATH, SHELLS, loop, num_results

pytestmark = pytest.mark.timeout(FIRST_TEST_S)
TURNS = 6
STOPPED_AT = 3
"""Tool results before the call that is in flight when the gateway is killed."""
SHORT = {
    "claude-code": 4_000,
    "codex": 10_000,
    "mini-swe-agent": 4_000,
    "opencode": 7_000,
    "qwen-code": 35_000,
    "tiny": 1_000,
}
"""Upper bound of the first prompt under the catalogue's options, in tokens of the byte-level tokenizer."""


@pytest.mark.parametrize("harness", sorted(SHELLS), indirect=True)
def test_a_killed_gateway_loses_no_call(attempt_without_gateway: HarnessAttempt, harness: str) -> None:
    """Calls in flight were lost at restarts elsewhere; here the next gateway finishes the same call."""
    attempt = attempt_without_gateway
    attempt.tapped = False
    attempt.engine.script = closing_gate(attempt, loop(harness, TURNS))
    with gateway_process(attempt.world) as gateway:
        attempt.start("Write lines into the file made.", **ONE_PATH.get(harness, {}))
        wait_until(lambda: not attempt.engine.gate.is_set())
        wait_until(lambda: len(attempt.engine.requests) == STOPPED_AT + 1)
        gateway.kill()
        gateway.wait()
    attempt.engine.gate.set()
    with gateway_process(attempt.world):
        assert attempt.wait().exit_code == 0, attempt.output
    assert len((attempt.workspace / "made").read_text().splitlines()) == TURNS - 1
    calls = attempt.world.calls()
    assert [(call.status, call.role) for call in calls] == [("committed", "main")] * TURNS
    check_lineage(attempt, calls)
    assert calls[0].num_input_tokens < SHORT[harness]
    assert len(attempt.world.leaves()) == 1


def closing_gate(attempt: HarnessAttempt, script: Callable[[GenerateRequest, str], str]):
    """Wrap a script so that it closes the engine's gate before a certain answer."""

    def closing(request: GenerateRequest, prompt: str) -> str:
        if num_results(prompt) == STOPPED_AT - 1:
            attempt.engine.gate.clear()
        return script(request, prompt)

    return closing
