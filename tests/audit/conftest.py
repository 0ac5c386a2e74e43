"""A database with the small run, cloned for each test, so that each may corrupt its own."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import torch
from sqlalchemy import Engine, text

from db.session import connect
from gyre.audit.objects import Bucket
from gyre.audit.report import AuditReport
from gyre.audit.witness import audit_run
from gyre.settings import Services
from gyre.store import BlobStore
from gyre.store.blobs import s3_client
from tests.audit import small_run

TEMPLATE = "gyre_audited"


@dataclass(frozen=True)
class Audited:
    """The small run in a database of this test's own; S3 and Temporal are shared."""

    services: Services
    database: Engine

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.services)

    def change(self, *statements: str) -> None:
        with self.database.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def value(self, statement: str) -> Any:
        with self.database.begin() as connection:
            return connection.execute(text(statement)).scalar_one()

    def audit(self, **options: Any) -> AuditReport:
        return audit_run(self.services, small_run.RUN, **options)


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
    name = f"a{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {audited_template}")
    dsn = _named(postgres_server, name)
    database = connect(dsn, pool_size=1)
    yield Audited(services.model_copy(update={"postgres_dsn": dsn}), database)
    database.dispose()
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def s3(services: Services) -> Any:
    return s3_client(services)


def _named(dsn: str, name: str) -> str:
    return f"{dsn.rpartition('/')[0]}/{name}"
