"""Embedded S3: ``rclone serve s3`` over a folder, in which each bucket is a folder."""

import urllib.error
import urllib.request

from app.stack.files import StateDir
from app.stack.installed_programs import program
from app.stack.services_record import BUCKET, ServicesRecord
from app.stack.spec import ProcessSpec
from gyre.host.ports import HOST


def s3_spec(state: StateDir, record: ServicesRecord) -> ProcessSpec:
    """Return the S3 server process, which creates Gyre's bucket before each start."""
    port = record.ports["s3"]
    command = (
        program("rclone"), "serve", "s3", "--addr", f"{HOST}:{port}", "--log-level", "ERROR", str(state.s3)
    )  # fmt: skip
    return ProcessSpec(
        name="s3",
        command=command,
        cwd=state.s3,
        log=state.logs / "s3.log",
        # In the environment, because anyone can read a command line. The value is CSV with one quoted field.
        environment={
            "RCLONE_AUTH_KEY": f'"{record.s3_access_key},{record.s3_secret_key}"',
            "RCLONE_CONFIG": "/dev/null",
        },
        ports=(port,),
        healthy=lambda: _answers(port),
        prepare=lambda: (state.s3 / BUCKET).mkdir(exist_ok=True),
    )


def _answers(port: int) -> bool:
    """Return whether anything answers HTTP: the root refuses a request without a signature."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/", timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
