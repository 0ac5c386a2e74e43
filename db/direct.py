"""A connection of the event loop's own, for the statements that every model call needs.

A thread, a pool and a session would each cost more than such a statement itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg.rows import TupleRow
from sqlalchemy.exc import DBAPIError

from db.session import CONNECT_S, KEEPALIVES, OPTIONS, Database

PLANS = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c jit=off"
"""Each statement is planned once, by keys: its tables are small when a run begins, and do not stay so."""
Connection = psycopg.AsyncConnection[TupleRow]


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with psycopg's named placeholders, and their values."""

    sql: LiteralString
    values: Mapping[str, Any]


class Direct:
    """One statement at a time, each a transaction by itself.

    The connection is opened when it is needed, and another one after a failure of it.
    """

    def __init__(self, engine: Database) -> None:
        """``engine`` says where; none of its connections is used."""
        self._dsn = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection: Connection | None = None
        self._times_abandoned = 0

    async def run(self, statement: Statement) -> list[TupleRow]:
        """The rows. Raises what SQLAlchemy raises: OperationalError, IntegrityError and so on."""
        times_abandoned = self._times_abandoned
        try:
            connection = await self._opened()
            try:
                cursor = await connection.execute(statement.sql, statement.values, prepare=True)
                return await cursor.fetchall()
            finally:
                if times_abandoned == self._times_abandoned:
                    self._connection = connection
                else:
                    connection.pgconn.finish()
        except psycopg.Error as error:
            raise DBAPIError.instance(None, None, error, psycopg.Error) from error

    def abandon(self) -> None:
        """Leave a statement that does not end to its own end; the next one has another connection."""
        self._connection = None
        self._times_abandoned += 1

    def close(self) -> None:
        """Nothing may be under way but what was left."""
        if self._connection is not None:
            self._connection.pgconn.finish()

    async def _opened(self) -> Connection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        return await Connection.connect(
            self._dsn, autocommit=True, connect_timeout=CONNECT_S, options=f"{OPTIONS} {PLANS}", **KEEPALIVES
        )
