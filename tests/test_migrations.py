"""The migrations make exactly the models' tables, both ways, on a real Postgres."""

from alembic import command

from db.migrate import alembic_config


def test_models_and_migrations_agree(postgres_dsn: str) -> None:
    command.check(alembic_config(postgres_dsn))


def test_downgrade_and_upgrade_again(postgres_dsn: str) -> None:
    config = alembic_config(postgres_dsn)
    command.downgrade(config, "base")
    command.upgrade(config, "head")
    command.check(config)
