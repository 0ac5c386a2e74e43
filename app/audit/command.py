"""The command `gyre audit RUN`: an independent recount of a run from Postgres, S3 and Temporal."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console
from rich.progress import Progress as ProgressBar
from rich.progress import TaskID
from sqlalchemy.exc import OperationalError

from app.audit.report import render
from app.audit.selection import MAX_TOKENS
from app.audit.trees import Progress
from app.stack import services_of
from db import audit as rows
from db.session import connect, transaction
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import RUN_NAME
from gyre.settings.services import Services
from gyre.settings.state import state_dir


def audit(
    run: Annotated[str, typer.Argument(help="The run's name.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    max_tokens: Annotated[
        int, typer.Option("--tokens", help="Number of sampled tokens to recompute.")
    ] = MAX_TOKENS,
    seed: Annotated[int, typer.Option(help="Seed for the choice of calls to recompute.")] = 0,
) -> None:
    """Recount a run from its rows, weights and histories. Exit with 0 if it is clean, with 1 if not."""
    name = run.removeprefix("run/")
    if not RUN_NAME.fullmatch(name):
        raise BadInput(f"no run {name[:60]!r} (`gyre runs` lists them)")
    services = services_of(state_dir(), name)
    with _explaining_outages(services):
        _require_run(services, name)
    # Imported late, because torch takes seconds to load.
    from app.audit.witness import audit_run

    with _progress_on_stderr() as progress, _explaining_outages(services):
        report = audit_run(services, name, max_tokens=max_tokens, seed=seed, progress=progress)
    if as_json:
        print(report.model_dump_json(indent=2))
    else:
        Console().print(render(report))
    raise typer.Exit(0 if report.clean else 1)


def _require_run(services: Services, name: str) -> None:
    database = connect(services.postgres_dsn, pool_size=1)
    try:
        with transaction(database) as session:
            if not rows.has_run(session, name):
                raise BadInput(f"no run '{name}' (`gyre runs` lists them)")
    finally:
        database.dispose()


@contextmanager
def _progress_on_stderr() -> Generator[Progress]:
    """Show a progress bar for each part of the audit."""
    with ProgressBar(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def show(part: str, done: int, total: int) -> None:
            if part not in tasks:
                tasks[part] = bar.add_task(part, total=total)
            bar.update(tasks[part], completed=done)

        yield show


@contextmanager
def _explaining_outages(services: Services) -> Generator[None]:
    """Turn an unreachable Postgres or S3 into a BadInput of one sentence."""
    try:
        yield
    except OperationalError as error:
        reason = str(error.orig).splitlines()[0]
        raise BadInput(f"Postgres cannot be read (`gyre up` starts it): {reason}") from error
    except (BotoCoreError, ClientError) as error:
        raise BadInput(f"S3 at {services.s3_endpoint or 'AWS'} cannot be read: {error}") from error
