"""Records on disk keep their format; a damaged one is reported in one sentence without its secrets."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from app.stack.files import StateDir
from app.stack.ledger import Entry, Ledger
from app.stack.run_record import read_run
from app.stack.services_record import read_services_record
from gyre.contracts.errors import BadInput
from gyre.host.processes import identify


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
    [("services.json", read_services_record), ("runs/r/processes.json", lambda state: read_run(state, "r"))],
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


def test_a_ledger_keeps_its_format_so_that_keepers_of_other_versions_adopt(tmp_path: Path) -> None:
    mine = identify(os.getpid())
    assert mine is not None
    document = {"postgres": {"process": {"pid": mine.pid, "start": mine.start}, "fingerprint": "x"}}
    file = tmp_path / "processes.json"
    file.write_text(json.dumps(document))
    entry = Ledger(file).alive("postgres")
    assert entry == Entry(process=mine, fingerprint="x")
    Ledger(tmp_path / "new.json").put("postgres", entry)
    assert json.loads((tmp_path / "new.json").read_text()) == document


@pytest.mark.parametrize("content", ["", "[]", '{"a": {"process": {"pid": 1}, "fingerprint": "x"}}'])
def test_a_damaged_ledger_adopts_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "processes.json").write_text(content)
    assert not Ledger(tmp_path / "processes.json").any_alive()
