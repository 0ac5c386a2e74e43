"""What a caller reads of a failure."""

import httpx
import pytest

from gateway.errors import LONGEST_SENTENCE, sentence_of
from gyre.contracts.errors import BadInput
from tests.gateway.wire import PATHS


def test_a_failure_is_one_line_whatever_it_quotes() -> None:
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
