"""Connection pools, one per process, and short transactions in UTC."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

Database = Engine
"""SQLAlchemy's connection pool. It goes by this name because in Gyre an engine is what samples tokens."""

CONNECT_S = 10
OPTIONS = "-c timezone=UTC -c statement_timeout=60000"
"""Server settings of every connection; the timeout is in milliseconds."""
KEEPALIVES: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""libpq settings of every connection: a host that is silent for half a minute counts as gone. The statement
timeout runs at the server, so without these a thread would wait for hours on a network that drops packets.
``tcp_user_timeout`` is in milliseconds, the others in seconds."""


def connect(dsn: str, *, pool_size: int = 8, pre_ping: bool = True) -> Database:
    """Open a pool of psycopg 3 connections. ``dsn`` is a libpq URL; statements time out after 60 s.

    Without ``pre_ping`` each transaction saves a round trip, but its caller must repeat it after Postgres
    restarted.
    """
    url = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    return create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_pre_ping=pre_ping,
        pool_timeout=30,
        pool_use_lifo=True,
        connect_args={"connect_timeout": CONNECT_S, "options": OPTIONS, **KEEPALIVES},
    )


@contextmanager
def transaction(database: Database) -> Generator[Session]:
    """Open a session that commits when the block ends and rolls back when it raises."""
    # Rows stay readable after the commit; expired ones would be read again without a transaction.
    with Session(database, expire_on_commit=False) as session, session.begin():
        yield session
