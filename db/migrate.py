"""Brings a database to the newest schema; safe to call from many processes at once."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import text

from db.session import connect

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"
LOCK = 0x67797265  # "gyre": an advisory lock, so that two processes never migrate together


def alembic_config(dsn: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    url = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def upgrade(dsn: str) -> None:
    """Run every pending migration under an advisory lock."""
    engine = connect(dsn, pool_size=1)
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK})
            try:
                command.upgrade(alembic_config(dsn), "head")
            finally:
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": LOCK})
    finally:
        engine.dispose()
