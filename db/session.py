"""One engine a process, short transactions, UTC."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

Database = Engine
"""SQLAlchemy's name for a pool of connections; here an engine is what samples tokens."""

CONNECT_S = 10
OPTIONS = "-c timezone=UTC -c statement_timeout=60000"
"""Of every connection: a statement times out after 60 s."""
KEEPALIVES: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""libpq's settings of every connection: a host that says nothing for half a minute is gone. The statement's
own time counts at the server; without these a thread waits for hours behind a network that drops packets."""


def connect(dsn: str, *, pool_size: int = 8, pre_ping: bool = True) -> Database:
    """An engine over psycopg 3. ``dsn`` is a libpq URL; statements time out after 60 s.

    Without ``pre_ping`` a transaction saves a round trip, and its caller repeats it when Postgres restarted.
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
def transaction(engine: Database) -> Generator[Session]:
    """A session that commits when the block ends and rolls back when it raises."""
    with Session(engine, expire_on_commit=False) as session, session.begin():
        yield session
