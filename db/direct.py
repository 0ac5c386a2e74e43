"""The event loop's own Postgres connection, for the statements that every model call needs.

A thread, a pool checkout or an ORM session would each cost more than such a statement itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg.rows import TupleRow
from sqlalchemy.exc import DBAPIError

from db.session import CONNECT_S, KEEPALIVES, OPTIONS, Database

PLANS = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c jit=off"
"""Plan each statement once, over indexes. A run's tables start small, and plans made then would scan them."""
Connection = psycopg.AsyncConnection[TupleRow]


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with psycopg's named placeholders, and the values for them."""

    sql: LiteralString
    values: Mapping[str, Any]


class Direct:
    """A connection that runs one statement at a time, each in its own transaction.

    It connects when it is first needed, and again after its connection failed or was abandoned.
    """

    def __init__(self, database: Database) -> None:
        """Take the address from ``database``; none of its pooled connections is used."""
        self._dsn = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection: Connection | None = None
        self._num_abandoned = 0

    async def run(self, statement: Statement) -> list[TupleRow]:
        """Run the statement and return its rows. Raises SQLAlchemy's errors: OperationalError and so on."""
        num_abandoned = self._num_abandoned
        try:
            connection = self._connection
            if connection is None or connection.closed:
                options = f"{OPTIONS} {PLANS}"
                connection = await Connection.connect(
                    self._dsn, autocommit=True, connect_timeout=CONNECT_S, options=options, **KEEPALIVES
                )
            try:
                # Left to itself, psycopg prepares a statement only once it has been executed five times.
                cursor = await connection.execute(statement.sql, statement.values, prepare=True)
                return await cursor.fetchall()
            finally:
                # An abandoned statement ends here late: by now `_connection` belongs to a successor.
                if num_abandoned == self._num_abandoned:
                    self._connection = connection
                else:
                    connection.pgconn.finish()
        except psycopg.Error as error:
            raise DBAPIError.instance(None, None, error, psycopg.Error) from error

    def abandon(self) -> None:
        """Leave a hanging statement behind; the next statement gets a new connection."""
        self._connection = None
        self._num_abandoned += 1

    def close(self) -> None:
        """Close the connection. No statement may be running, except abandoned ones."""
        if self._connection is not None:
            self._connection.pgconn.finish()
