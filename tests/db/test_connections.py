"""The settings that every connection to Postgres is opened with."""

import asyncio
import os
import socket

from db.direct import Direct, Statement
from db.session import connect


def patience(descriptor: int) -> tuple[bool, int, int]:
    """Return whether a socket sends keepalives, their idle time in seconds, and its user timeout in ms."""
    with socket.socket(fileno=os.dup(descriptor)) as opened:
        return (
            bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)),
            opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        )


def test_connections_give_up_on_a_network_that_drops_packets(postgres_dsn: str) -> None:
    """Otherwise each dropped connection would block one of the few threads for hours."""
    database = connect(postgres_dsn)
    with database.connect() as connection:
        pooled = patience(connection.connection.dbapi_connection.fileno())  # pyright: ignore
    direct = Direct(database)

    async def opened() -> tuple[bool, int, int]:
        await direct.run(Statement("SELECT 1", {}))
        assert direct._connection is not None
        return patience(direct._connection.fileno())

    assert pooled == asyncio.run(opened()) == (True, 10, 30_000)
    direct.close()
    database.dispose()
