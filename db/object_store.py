# boto3 ships no types.
# pyright: basic, reportMissingTypeStubs=false
"""Content-addressed objects in S3. The key is ``sha256/<hex>``, so equal files are one object."""

import hashlib
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from db import blobs
from db.session import Database, transaction
from gyre.contracts.errors import SnapshotFailed
from gyre.settings.services import Services

MISSING = ("404", "NoSuchKey")


class BlobStore:
    """Files in S3, each vouched for by a blob row; thread-safe.

    Errors of boto3 pass through: they mean that S3 is unreachable or refuses, not that a file is bad.
    """

    def __init__(self, services: Services, database: Database) -> None:
        self._database = database
        self._bucket = services.s3_bucket
        self._s3: Any = s3_client(services)

    def put_file(self, path: Path) -> str:
        """Upload a file unless it is stored already; return its key once a confirmed row vouches for it."""
        digest = _file_sha256(path)
        key, num_bytes = f"sha256/{digest}", path.stat().st_size
        # The row goes first, so that an interrupted upload never leaves an object that no row names.
        with transaction(self._database) as session:
            missing = blobs.reserve(session, key, digest, num_bytes)
        if missing:
            self._s3.upload_file(str(path), self._bucket, key)
            with transaction(self._database) as session:
                blobs.confirm(session, key)
        return key

    def get_file(self, key: str, path: Path) -> None:
        """Download an object and verify its hash. Raises SnapshotFailed if it is missing or differs."""
        with transaction(self._database) as session:
            row = blobs.confirmed(session, key)
        if row is None:
            raise SnapshotFailed(f"no confirmed object {key}")
        try:
            self._s3.download_file(self._bucket, key, str(path))
        except ClientError as error:
            if error.response["Error"]["Code"] not in MISSING:
                raise
            raise SnapshotFailed(f"object {key} is not in the store") from error
        if _file_sha256(path) != row.sha256:
            raise SnapshotFailed(f"object {key} does not have the bytes its row names")


def s3_client(services: Services) -> Any:
    """Build a boto3 client with path-style addressing and bounded retries."""
    return boto3.client(
        "s3",
        endpoint_url=services.s3_endpoint,
        aws_access_key_id=services.s3_access_key,
        aws_secret_access_key=services.s3_secret_key,
        region_name=services.s3_region,
        config=Config(
            s3={"addressing_style": "path"},
            connect_timeout=5,
            read_timeout=60,
            retries={"max_attempts": 5, "mode": "standard"},
        ),
    )


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
