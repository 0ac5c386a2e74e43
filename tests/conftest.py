"""Fixtures on real servers: each server starts once per session, and each test gets its own database."""

import secrets
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import psycopg
import pytest

from app import stack
from app.stack import postgres
from db import groups, migrate
from db.models import RunConfigRow, RunRow, TaskRow
from db.session import Database, connect, transaction
from gyre.contracts.ids import ExecutionId, GroupId, RunId, execution_id, group_id, task_id
from gyre.host.ports import HOST, choose_port
from gyre.settings import Services

# A busy machine must not fail a property: nothing here is a timing claim.
hypothesis.settings.register_profile("gyre", deadline=None)
hypothesis.settings.load_profile("gyre")

RUN = RunId("r")
UNSAFE_AND_QUICK = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
"""Settings of Postgres: no test's database has to survive the test."""


SLOW_FIXTURES = ("database", "postgres_dsn", "postgres_server", "services")
"""Fastest to start first."""
LONGEST = ("tests/e2e/test_crash.py", "tests/harnesses", "tests/e2e/test_run.py", "tests/cli/test_bench.py")
"""Minutes each; parallel workers end together when these begin first."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order modules, each in one piece.

    A single process runs those that need no server first, so that a mistake shows soon. Parallel workers,
    which take whole modules, start with the longest.
    """
    items.sort(key=_longest_first if hasattr(config, "workerinput") else _fastest_first(items))


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _longest_first(item: pytest.Item) -> int:
    return next((i for i, path in enumerate(LONGEST) if item.nodeid.startswith(path)), len(LONGEST))


def _fastest_first(items: list[pytest.Item]) -> Callable[[pytest.Item], int]:
    cost: dict[str, int] = {}
    for item in items:
        needed = set(getattr(item, "fixturenames", ()))
        slowest = max((n for n, name in enumerate(SLOW_FIXTURES, start=1) if name in needed), default=0)
        cost[_module(item)] = max(cost.get(_module(item), 0), slowest)
    return lambda item: cost[_module(item)]


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A temporary folder whose path is short enough for Unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="gyre-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def services(short_folder: Path) -> Iterator[Services]:
    """Embedded Temporal, Postgres and S3, started by the stack itself, empty at the session's start."""
    state_dir = short_folder / ".gyre"
    yield stack.ensure_up(state_dir)
    stack.down(state_dir)


@pytest.fixture(scope="session")
def postgres_server(short_folder: Path) -> Iterator[str]:
    """libpq URL of a fresh server with a migrated template database ``gyre_template``."""
    password, port = secrets.token_hex(8), choose_port(set())
    dsn = f"postgresql://gyre:{password}@{HOST}:{port}/postgres"
    log = short_folder / "postgres.log"
    postgres.initialise(short_folder / "postgres", password)
    spec = postgres.server(short_folder / "postgres", log, port, dsn, UNSAFE_AND_QUICK)
    with log.open("wb") as output:
        process = subprocess.Popen(
            spec.command, **spec.credentials._asdict(), cwd="/", stdout=output, stderr=output
        )
    while not spec.healthy():
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE gyre_template")
    migrate.upgrade(_with_database(dsn, "gyre_template"))
    yield dsn
    process.send_signal(spec.stop_signal)
    process.wait(spec.stop_grace_s)


@pytest.fixture
def postgres_dsn(postgres_server: str) -> Iterator[str]:
    """libpq URL of an empty, migrated database for this test alone."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE gyre_template")
    yield _with_database(postgres_server, name)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(postgres_dsn: str) -> Iterator[Database]:
    engine = connect(postgres_dsn)
    yield engine
    engine.dispose()


def _with_database(dsn: str, name: str) -> str:
    return f"{dsn.rpartition('/')[0]}/{name}"


@pytest.fixture
def group(database: Database) -> GroupId:
    """A running train group of two executions."""
    with transaction(database) as session:
        session.add(RunRow(id=RUN, status="running", secret=b"k"))
        session.flush()
        session.add(RunConfigRow(run_id=RUN, revision=0, resolved={}, fingerprint="f"))
        session.add(TaskRow(id=task_id(RUN, "a"), run_id=RUN, name="a", split="train", path="p", sha256="s"))
        session.flush()
        groups.dispatch(session, RUN, task_id(RUN, "a"), index=0, size=2, version=0)
    return group_id(RUN, 0)


@pytest.fixture
def execution(group: GroupId) -> ExecutionId:
    return execution_id(group, 0)
