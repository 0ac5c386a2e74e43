"""Opens the database of a run for reading, and resolves the names that people type."""

import re
from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app import stack
from db import names, queries
from db.session import connect, transaction
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import RUN_NAME, RunId, execution_of, run_of
from gyre.settings.services import Services
from gyre.settings.state import state_dir

NUMBER = "[0-9]{1,9}"
ROLLOUT = re.compile(
    f"run/(?P<run>[^/]+)/group/{NUMBER}/rollout/{NUMBER}"
    f"(?:/attempt/{NUMBER}(?:/(?:call|node)/{NUMBER}|/snapshot)?|/evaluation/{NUMBER}(?:/reward)?)?"
)
"""A rollout or what is below one."""
LONGEST = 60
"""Characters of a mistyped name that are shown."""


def run_name(text: str) -> RunId:
    """``demo`` or ``run/demo``. Raises BadInput for what can be no run's name."""
    name = text.removeprefix("run/")
    if not RUN_NAME.fullmatch(name):
        raise BadInput(f"no run {_shown(name)} (`gyre runs` lists them)")
    return RunId(name)


def rollout_name(text: str) -> str:
    """The full id of a rollout or of something below one, which may be typed without ``run/``.

    Raises BadInput for anything else.
    """
    full = text if text.startswith("run/") else f"run/{text}"
    found = ROLLOUT.fullmatch(full)
    if found is None:
        raise BadInput(
            f"{_shown(text)} names no rollout (they look like NAME/group/0/rollout/0: `gyre rollouts NAME`)"
        )
    run_name(found["run"])
    return full


def _shown(text: str) -> str:
    """In quotes, with what cannot be printed escaped."""
    return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")


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
    """A session on the database that holds the rollout, and its full id; ids below it count as its own.

    Raises BadInput where the rollout, or what is named below it, is not there.
    """
    name = rollout_name(text)
    rollout = execution_of(name)
    with reading_run(run_of(rollout)) as session:
        if not queries.execution_exists(session, rollout):
            raise BadInput(f"no rollout '{rollout}' (`gyre rollouts {run_of(rollout)}` lists them)")
        if name != rollout and not names.exists(session, name):
            raise BadInput(f"no {names.kind_of(name)} '{name}' (`gyre calls {rollout}` lists what there is)")
        yield session, rollout
