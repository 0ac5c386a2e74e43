"""Open the database of a run for reading, and resolve the names that people type."""

import re
from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app import stack
from db import names, queries
from db.session import connect, transaction
from gyre.contracts.errors import BadInput, GyreError
from gyre.contracts.ids import RUN_NAME, RunId, execution_of, run_of
from gyre.settings.services import Services
from gyre.settings.state import state_dir

NUMBER = "[0-9]{1,9}"
ROLLOUT = re.compile(
    f"run/(?P<run>[^/]+)/group/{NUMBER}/rollout/{NUMBER}"
    f"(?:/attempt/{NUMBER}(?:/(?:call|node)/{NUMBER}|/snapshot)?|/evaluation/{NUMBER}(?:/reward)?)?"
)
"""The id of a rollout, or of something below one."""
LONGEST = 60
"""Characters of a mistyped name that are printed."""


def run_name(text: str) -> RunId:
    """Parse ``demo`` or ``run/demo``. Raises BadInput for text that cannot be a run's name."""
    name = text.removeprefix("run/")
    if not RUN_NAME.fullmatch(name):
        raise BadInput(f"no run {_quoted(name)} (`gyre runs` lists them)")
    return RunId(name)


def rollout_name(text: str) -> str:
    """Return the full id of a rollout, or of something below one; ``run/`` in front may be left out.

    Raises BadInput for anything else.
    """
    full = text if text.startswith("run/") else f"run/{text}"
    found = ROLLOUT.fullmatch(full)
    if found is None:
        raise BadInput(
            f"{_quoted(text)} names no rollout (allowed: NAME/group/0/rollout/0; `gyre rollouts NAME` lists "
            "them)"
        )
    run_name(found["run"])
    return full


def _quoted(text: str) -> str:
    """Quote the text, shortened and with unprintable characters escaped."""
    return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")


@contextmanager
def reading(services: Services) -> Generator[Session]:
    """Yield a session on a database that may be down. Raises BadInput then."""
    database = connect(services.postgres_dsn, pool_size=1)
    try:
        with transaction(database) as session:
            yield session
    except OperationalError as error:
        reason = str(error.orig).strip().splitlines()[0]
        raise BadInput(f"Postgres cannot be read (`gyre up` starts the embedded one): {reason}") from error
    finally:
        database.dispose()


@contextmanager
def reading_run(name: RunId) -> Generator[Session]:
    """Yield a session on the database that holds the run. Raises BadInput if there is no such run."""
    with reading(stack.services_of(state_dir(), name)) as session:
        if queries.summarise(session, name) is None:
            raise BadInput(f"no run '{name}' (`gyre runs` lists them)")
        yield session


def summary_of(session: Session, name: str) -> queries.RunSummary:
    """Return the summary of a run that was seen before. Raises GyreError if its rows are gone."""
    summary = queries.summarise(session, name)
    if summary is None:
        raise GyreError(f"run '{name}' is gone from Postgres")
    return summary


@contextmanager
def reading_rollout(text: str) -> Generator[tuple[Session, str]]:
    """Yield a session on the database that holds the rollout, and the rollout's full id.

    The id of something below a rollout stands for the rollout. Raises BadInput where either does not exist.
    """
    name = rollout_name(text)
    rollout = execution_of(name)
    with reading_run(run_of(rollout)) as session:
        if not queries.execution_exists(session, rollout):
            raise BadInput(f"no rollout '{rollout}' (`gyre rollouts {run_of(rollout)}` lists them)")
        if name != rollout and not names.exists(session, name):
            raise BadInput(f"no {names.kind_of(name)} '{name}' (`gyre calls {rollout}` lists what there is)")
        yield session, rollout
