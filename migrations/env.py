"""Alembic's environment: it compares the database at the caller's URL with the models of `db.models`."""

from alembic import context
from sqlalchemy import engine_from_config, pool

import db.models  # noqa: F401  (fills the metadata)
from db.base import Base

config = context.config
with engine_from_config(
    config.get_section(config.config_ini_section, {}),
    prefix="sqlalchemy.",
    poolclass=pool.NullPool,
).connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata, compare_type=True)
    with context.begin_transaction():
        context.run_migrations()
