"""Opens the database of a run for reading, and resolves the names that people type."""

from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from db import queries
from db.session import connect, transaction
from gyre import stack
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import RunId, execution_of, run_of
from gyre.settings.services import Services
from gyre.settings.state import state_dir


def run_name(text: str) -> RunId:
    """``demo`` or ``run/demo``."""
    return RunId(text.removeprefix("run/"))


def rollout_name(text: str) -> str:
    """The rollout that an id names: with or without ``run/``, and ids below it count as its own.

    Raises BadInput for anything that names no rollout.
    """
    full = text if text.startswith("run/") else f"run/{text}"
    try:
        return execution_of(full)
    except ValueError:
        raise BadInput(
            f"'{text}' names no rollout (they look like NAME/group/0/rollout/0: `gyre rollouts NAME`)"
        ) from None


@contextmanager
def reading(services: Services) -> Generator[Session]:
    """A session on a database that may be down. Raises BadInput with one sentence then."""
    engine = connect(services.postgres_dsn, pool_size=1)
    try:
        with transaction(engine) as session:
            yield session
    except OperationalError as error:
        reason = str(error.orig).strip().splitlines()[0]
        raise BadInput(f"Postgres cannot be read (`gyre up` starts the embedded one): {reason}") from error
    finally:
        engine.dispose()


@contextmanager
def reading_run(name: RunId) -> Generator[Session]:
    """A session on the database that holds the run. Raises BadInput if there is no such run."""
    with reading(stack.services_of(state_dir(), name)) as session:
        if queries.summarise(session, name) is None:
            raise BadInput(f"no run '{name}' (`gyre runs` lists them)")
        yield session


@contextmanager
def reading_rollout(text: str) -> Generator[tuple[Session, str]]:
    """A session on the database that holds the rollout, and its full id."""
    rollout = rollout_name(text)
    with reading_run(run_of(rollout)) as session:
        if not queries.execution_exists(session, rollout):
            raise BadInput(f"no rollout '{rollout}' (`gyre rollouts {run_of(rollout)}` lists them)")
        yield session, rollout
