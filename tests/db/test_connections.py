"""What every connection to Postgres is opened with."""

import asyncio
import os
import socket

from db.direct import Direct, Statement
from db.session import connect


def patience(descriptor: int) -> tuple[bool, int, int]:
    """Whether probes are sent, and after how many seconds and milliseconds a silent host is given up."""
    with socket.socket(fileno=os.dup(descriptor)) as opened:
        return (
            bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)),
            opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        )


def test_a_network_that_drops_packets_ends_connections(postgres_dsn: str) -> None:
    """A thread that waits behind one for hours is lost, and there are few."""
    engine = connect(postgres_dsn)
    with engine.connect() as connection:
        pooled = patience(connection.connection.dbapi_connection.fileno())  # pyright: ignore
    direct = Direct(engine)

    async def opened() -> tuple[bool, int, int]:
        await direct.run(Statement("SELECT 1", {}))
        assert direct._connection is not None
        return patience(direct._connection.fileno())

    assert pooled == asyncio.run(opened()) == (True, 10, 30_000)
    direct.close()
    engine.dispose()
