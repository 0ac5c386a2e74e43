"""Makes the database itself, on a server that lets us."""

from sqlalchemy import text

from db.session import connect


def ensure_database(server_dsn: str, name: str) -> None:
    """Create database ``name`` unless it is there. ``server_dsn`` names another database of the server."""
    engine = connect(server_dsn, pool_size=1).execution_options(isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            query = text("SELECT 1 FROM pg_database WHERE datname = :name")
            if connection.execute(query, {"name": name}).first() is None:
                quoted = engine.dialect.identifier_preparer.quote_identifier(name)
                connection.execute(text(f"CREATE DATABASE {quoted}"))
    finally:
        engine.dispose()
