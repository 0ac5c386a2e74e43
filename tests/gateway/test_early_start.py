"""A harness that gives up when a stream breaks gets its stream only once the answer is there."""

from collections.abc import Iterator

import httpx
import pytest

from db.models import RunConfigRow
from db.session import transaction
from tests.gateway.conftest import World, gateway_thread
from tests.gateway.scripted_engine import Part, ScriptedEngine


@pytest.fixture
def gateway(world: World, harness: str) -> Iterator[World]:
    with transaction(world.database) as session:
        config = session.get_one(RunConfigRow, ("r", 0))
        config.resolved = config.resolved | {"harness": {"name": harness}}
    with gateway_thread(world):
        yield world


@pytest.mark.parametrize(("harness", "status"), [("qwen-code", 400), ("opencode", 200)])
def test_a_failure_has_a_status_if_the_stream_has_not_begun(
    gateway: World, http: httpx.Client, engine: ScriptedEngine, status: int
) -> None:
    engine.script = lambda request, prompt: Part(status=400, message="too much")
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    answer = http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, "too much" in answer.text) == (status, True)


@pytest.mark.parametrize("harness", ["qwen-code"])
def test_a_stream_that_begins_late_is_complete(gateway: World, http: httpx.Client) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream"
    assert '"content":"done"' in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
