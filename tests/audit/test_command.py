"""The command `gyre audit`, as people and scripts use it."""

import json
from pathlib import Path

import psycopg
import pytest
import typer
from typer.testing import CliRunner

from app.audit.command import audit
from app.stack.files import StateDir
from app.stack.run_record import ensure_run
from gyre.contracts.errors import BadInput
from gyre.settings import Services
from tests.audit.small_tree import RUN

STABLE_KEYS = {
    "calls", "tokens", "versions", "coverage", "targets_not_sampled", "targets_repeated", "hash_mismatches",
    "logprob_gap_mean", "logprob_gap_p999", "mixed_kv_tokens", "executions_interrupted",
    "sampled_tokens_discarded", "harness_errors", "gradients_duplicated", "gradients_missing",
    "waterlevel_violations", "largest_payload_bytes",
}  # fmt: skip


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(audit)
    return app


@pytest.fixture
def started(copied: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Services:
    """The services of the small run, as if it had been started from this test's state directory."""
    monkeypatch.setenv("GYRE_STATE_DIR", str(tmp_path))
    ensure_run(StateDir(tmp_path), RUN, copied, 0, 1, 1)
    return copied


def test_json_is_one_document_with_the_stable_keys(started: Services, app: typer.Typer) -> None:
    result = CliRunner().invoke(app, [RUN, "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document.keys() >= STABLE_KEYS | {"violations", "checks"}
    assert document["violations"] == []


def test_a_violation_is_printed_and_exits_with_1(started: Services, app: typer.Typer) -> None:
    with psycopg.connect(started.postgres_dsn) as connection:
        connection.execute("UPDATE batch SET num_executions = 7 WHERE version = 1")
    result = CliRunner().invoke(app, [f"run/{RUN}", "--tokens", "0"])
    assert result.exit_code == 1
    assert "divides by 7, but has 4 frozen rewards" in result.stdout
    assert "hash_mismatches" in result.stdout


def test_postgres_out_of_reach_is_one_sentence(started: Services, app: typer.Typer, tmp_path: Path) -> None:
    nowhere = started.model_copy(update={"postgres_dsn": "postgresql://u:p@127.0.0.1:1/gyre"})
    ensure_run(StateDir(tmp_path), RUN, nowhere, 0, 1, 1)
    result = CliRunner().invoke(app, [RUN])
    assert isinstance(result.exception, BadInput)
    assert str(result.exception).startswith("Postgres cannot be read")
    assert "\n" not in str(result.exception)


def test_s3_out_of_reach_is_one_sentence(started: Services, app: typer.Typer, tmp_path: Path) -> None:
    nowhere = started.model_copy(update={"s3_endpoint": "http://127.0.0.1:1"})
    ensure_run(StateDir(tmp_path), RUN, nowhere, 0, 1, 1)
    result = CliRunner().invoke(app, [RUN])
    assert isinstance(result.exception, BadInput)
    assert str(result.exception).startswith("S3 at http://127.0.0.1:1 cannot be read")
