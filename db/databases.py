"""Create the database itself, on a server that allows it."""

from sqlalchemy import text

from db.session import connect


def ensure_database(server_dsn: str, name: str) -> None:
    """Create database ``name`` unless it exists. ``server_dsn`` names another database of the same server."""
    # CREATE DATABASE is refused inside a transaction.
    server = connect(server_dsn, pool_size=1).execution_options(isolation_level="AUTOCOMMIT")
    try:
        with server.connect() as connection:
            query = text("SELECT 1 FROM pg_database WHERE datname = :name")
            if connection.execute(query, {"name": name}).first() is None:
                quoted = server.dialect.identifier_preparer.quote_identifier(name)
                connection.execute(text(f"CREATE DATABASE {quoted}"))
    finally:
        server.dispose()
