"""Upgrade a database to the newest schema. Many processes may do so at once."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import text

from db.session import connect

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"
LOCK = 0x67797265
"""Key of the advisory lock that lets one process migrate at a time: "gyre" in ASCII."""


def alembic_config(dsn: str) -> Config:
    """Return the Alembic configuration for a libpq URL."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    url = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    # Alembic's options go through configparser, which interpolates "%".
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def upgrade(dsn: str) -> None:
    """Run every pending migration under an advisory lock."""
    database = connect(dsn, pool_size=1)
    try:
        with database.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK})
            try:
                # Alembic opens its own connection; this one holds the lock until it has finished.
                command.upgrade(alembic_config(dsn), "head")
            finally:
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": LOCK})
    finally:
        database.dispose()
