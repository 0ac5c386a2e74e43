"""The sentences and statuses that callers see."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from db.models import RunConfigRow
from db.session import transaction
from gateway import __main__ as process
from gateway.errors import LONGEST_SENTENCE, sentence_of
from gyre.contracts.errors import BadInput
from tests.gateway.conftest import World, gateway_thread, wait_until
from tests.gateway.scripted_engine import ScriptedEngine
from tests.gateway.wire import DIALECTS, PATHS, refusal_in, request_in


def test_a_failure_is_one_short_line_whatever_it_quotes() -> None:
    assert sentence_of(BadInput("the template says:\n  no tools\r\n")) == "the template says: no tools"
    assert len(sentence_of(BadInput("y" * 100_000))) == LONGEST_SENTENCE + 1
    assert sentence_of(ValueError("secret")) == "internal error of the gateway"


@pytest.mark.parametrize("name", ["y" * 30_000, "\n" * 1000])
def test_a_quoted_name_does_not_fill_the_answer(http: httpx.Client, name: str) -> None:
    tool = {"name": name, "input_schema": 3}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [tool], "max_tokens": 9}
    refused = http.post(PATHS["anthropic"], json=body)
    assert refused.status_code == 400
    assert 0 < len(refused.json()["error"]["message"]) <= LONGEST_SENTENCE + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_stopping_gateway_asks_waiting_clients_to_retry(
    world: World, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """They get a 503 in the dialect's shape, for a whole answer and for a stream that has not begun."""
    monkeypatch.setattr(process, "SHUTDOWN_S", 0.2)
    with transaction(world.database) as session:
        row = session.get_one(RunConfigRow, ("r", 0))
        row.resolved = {**row.resolved, "harness": {"name": "qwen-code"}}
    engine.gate.clear()

    def ask(dialect: str) -> httpx.Response:
        path, body = request_in(dialect, dialect, max_tokens=9, stream=stream)
        return httpx.post(f"{world.url}/t/{world.token}{path}", json=body, timeout=30)

    with ThreadPoolExecutor(4) as pool:
        with gateway_thread(world):
            asked = {dialect: pool.submit(ask, dialect) for dialect in DIALECTS}
            wait_until(lambda: len(engine.requests) == 4)
        answers = {dialect: each.result() for dialect, each in asked.items()}
    engine.gate.set()
    for dialect, answer in answers.items():
        assert answer.status_code == (529 if dialect == "anthropic" else 503)
        assert answer.headers["retry-after"] == "1"
        assert refusal_in(answer.json())[1] == "the gateway is stopping: ask again"
    assert [call.status for call in world.calls()] == ["in_flight"] * 4
