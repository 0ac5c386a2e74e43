"""A run of an earlier version of the code passes the audit of this one, after the migrations since.

``fixtures/run-of-0.1.0.tar.gz`` holds a finished run of two updates as that version left it: its rows (schema
revision 0002, data only), its S3 objects and the model's configuration.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command

from app.audit.report import AuditReport
from app.audit.witness import audit_run
from db.migrate import alembic_config, upgrade
from db.object_store import s3_client
from gyre.settings import Services

ARCHIVE = Path(__file__).parent / "fixtures" / "run-of-0.1.0.tar.gz"
REVISION = "0002"


@pytest.fixture(scope="module")
def old_run(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: str, services: Services
) -> Iterator[Services]:
    """Services that hold the old run, migrated to the newest schema."""
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE old_run")
    dsn = f"{postgres_server.rpartition('/')[0]}/old_run"
    command.upgrade(alembic_config(dsn), REVISION)
    with psycopg.connect(dsn) as connection:
        # Rows refer to each other in circles; the dump is consistent as a whole.
        connection.execute("SET session_replication_role = replica")
        rows = (folder / "rows.sql").read_text().replace("@FOLDER@", str(folder))
        connection.execute(rows.encode())
    upgrade(dsn)
    s3: Any = s3_client(services)
    for file in (folder / "objects").iterdir():
        s3.upload_file(str(file), services.s3_bucket, f"sha256/{file.name}")
    yield services.model_copy(update={"postgres_dsn": dsn})
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("DROP DATABASE old_run WITH (FORCE)")


@pytest.fixture(scope="module")
def report(old_run: Services) -> AuditReport:
    return audit_run(old_run, "old")


def test_the_old_run_is_clean(report: AuditReport) -> None:
    assert report.violations == []
    assert report.clean


def test_everything_that_the_old_audit_saw_is_seen(report: AuditReport) -> None:
    assert (report.calls, report.tokens, report.versions) == (48, 661, 3)
    assert report.coverage == 1
    assert report.logprob_gap_mean is not None
    assert report.logprob_gap_mean < 1e-5


def test_a_changed_token_of_the_old_run_is_found(old_run: Services) -> None:
    with psycopg.connect(old_run.postgres_dsn, autocommit=True) as connection:
        found = connection.execute(
            "SELECT id, token_ids FROM tree_node WHERE kind = 'sampled' ORDER BY id LIMIT 1"
        ).fetchone()
        assert found is not None
        name, ids = found
        change = "UPDATE tree_node SET token_ids = %s WHERE id = %s"
        connection.execute(change, (bytes([ids[0] ^ 1]) + ids[1:], name))
        try:
            assert audit_run(old_run, "old").hash_mismatches > 0
        finally:
            connection.execute(change, (ids, name))
