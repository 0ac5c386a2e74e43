"""A database with the small run. Each test corrupts it in its own transaction, which is rolled back."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import torch
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.audit.report import AuditReport
from app.audit.witness import audit_session
from db.object_store import BlobStore, s3_client
from db.session import connect
from gyre.settings import Services
from tests.audit import small_run

TEMPLATE = "gyre_audited"


@dataclass(frozen=True)
class Audited:
    """The small run in a transaction that is rolled back. S3 and Temporal are shared with other tests."""

    services: Services
    session: Session

    def change(self, *statements: str) -> None:
        """Execute SQL statements."""
        for statement in statements:
            self.session.execute(text(statement))

    def value(self, statement: str) -> Any:
        """Return the single value that a statement selects."""
        return self.session.execute(text(statement)).scalar_one()

    def audit(self, **options: Any) -> AuditReport:
        """Audit the run as it is in this transaction."""
        return audit_session(self.session, self.services, small_run.RUN, **options)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="session")
def audited_template(postgres_server: str, services: Services, model_folder: Path) -> str:
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE gyre_template")
    database = connect(_named(postgres_server, TEMPLATE))
    small_run.build(database, BlobStore(services, database), model_folder)
    database.dispose()
    return TEMPLATE


@pytest.fixture
def audited(postgres_server: str, audited_template: str, services: Services) -> Iterator[Audited]:
    database = connect(_named(postgres_server, audited_template), pool_size=1)
    with Session(database) as session:
        yield Audited(services, session)
    database.dispose()


@pytest.fixture
def copied(postgres_server: str, audited_template: str, services: Services) -> Iterator[Services]:
    """Services whose Postgres holds a copy of the small run, for code that opens its own connection."""
    name = f"a{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {audited_template}")
    yield services.model_copy(update={"postgres_dsn": _named(postgres_server, name)})
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def s3(services: Services) -> Any:
    return s3_client(services)


def _named(dsn: str, name: str) -> str:
    return f"{dsn.rpartition('/')[0]}/{name}"
