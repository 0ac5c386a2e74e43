"""The migrations build exactly the models' tables, and can be undone, on a real Postgres."""

from alembic import command

from db.migrate import alembic_config


def test_models_and_migrations_agree(postgres_dsn: str) -> None:
    command.check(alembic_config(postgres_dsn))


def test_the_schema_can_be_removed_and_built_again(postgres_dsn: str) -> None:
    config = alembic_config(postgres_dsn)
    command.downgrade(config, "base")
    command.upgrade(config, "head")
    command.check(config)
