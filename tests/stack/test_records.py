"""A damaged record is one sentence, without what it keeps secret."""

from collections.abc import Callable
from pathlib import Path

import pytest

from app.stack.files import StateDir
from app.stack.record import read_record
from app.stack.runs import read_run
from gyre.contracts.errors import BadInput


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"postgres_password": 5, "ports": 3, "secret": "hidden"}',
        b'{"services": {"postgres_dsn": "hidden", "temporal_address": "hidden"}, "run": 1}',
    ],
)
@pytest.mark.parametrize(
    ("file", "read"),
    [("services.json", read_record), ("runs/r/processes.json", lambda state: read_run(state, "r"))],
)
def test_a_damaged_record_is_one_sentence(
    tmp_path: Path, file: str, read: Callable[[StateDir], object], content: bytes
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(BadInput, match="cannot be read") as refused:
        read(StateDir(tmp_path))
    assert "\n" not in str(refused.value)
    assert "postgres_dsn = 'hidden'" not in str(refused.value)
