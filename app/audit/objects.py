"""Read-only access to S3 objects: sizes and whole files."""

import hashlib
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from gyre.settings.services import Services

CHUNK_BYTES = 1 << 20


class Bucket:
    """The run's bucket. A missing object is None; other errors of boto3 pass through."""

    def __init__(self, services: Services) -> None:
        self._name = services.s3_bucket
        # Not the client of db.object_store: the audit shares no code with what it audits.
        self._s3: Any = boto3.client(  # pyright: ignore[reportUnknownMemberType]
            "s3",
            endpoint_url=services.s3_endpoint,
            aws_access_key_id=services.s3_access_key,
            aws_secret_access_key=services.s3_secret_key,
            region_name=services.s3_region,
            config=Config(s3={"addressing_style": "path"}, connect_timeout=5, read_timeout=60),
        )

    def num_bytes(self, key: str) -> int | None:
        """Return the size of an object, or None if it is missing."""
        try:
            return self._s3.head_object(Bucket=self._name, Key=key)["ContentLength"]
        except ClientError as error:
            if _is_missing(error):
                return None
            raise

    def download(self, key: str, path: Path) -> str | None:
        """Write the object to ``path`` and return its SHA-256, or None if it is missing."""
        try:
            body = self._s3.get_object(Bucket=self._name, Key=key)["Body"]
        except ClientError as error:
            if _is_missing(error):
                return None
            raise
        digest = hashlib.sha256()
        with path.open("wb") as file:
            for chunk in body.iter_chunks(CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
        return digest.hexdigest()


def _is_missing(error: ClientError) -> bool:
    return error.response["Error"]["Code"] in {"404", "NoSuchKey", "NotFound"}
