"""Addresses of Temporal, Postgres and S3: of the embedded stack, or from the run file's ``[services]``."""

import re
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, field_validator

ADDRESS = re.compile(r"(?:[^\s:/@\[\]]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})")
BUCKET = re.compile(r"[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]")
MAX_PORT = 65_535


class Services(BaseModel):
    """Addresses and credentials of the services that a process uses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temporal_address: str
    """``host:port`` of the Temporal frontend."""
    temporal_namespace: str = "default"
    temporal_ui: str | None = None
    """Address of Temporal's web UI, to show to people."""
    postgres_dsn: str
    """A libpq URL: ``postgresql://user:password@host:port/database``."""
    s3_endpoint: str | None = None
    """URL of the S3 server; None is AWS's own endpoint."""
    s3_bucket: str = "gyre"
    s3_access_key: str
    s3_secret_key: str
    s3_region: str = "us-east-1"

    @field_validator("temporal_address")
    @classmethod
    def _host_and_port(cls, address: str) -> str:
        found = ADDRESS.fullmatch(address)
        if found is None or not 0 < int(found[1]) <= MAX_PORT:
            raise ValueError("it must be host:port, with a port from 1 to 65535")
        return address

    @field_validator("postgres_dsn")
    @classmethod
    def _postgres_url(cls, dsn: str) -> str:
        """Write the scheme as ``postgresql``, which both libpq and SQLAlchemy accept."""
        scheme, mark, rest = dsn.partition("://")
        if scheme not in ("postgresql", "postgres") or not mark or not _has_good_port(dsn):
            # The message must not show the value, which holds the password.
            raise ValueError(
                "it must be postgresql://user:password@host:port/database, "
                "with special characters of the password percent-encoded"
            )
        return f"postgresql://{rest}"

    @field_validator("s3_endpoint")
    @classmethod
    def _http_url(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not _is_http(endpoint):
            raise ValueError("it must be http://host:port or https://host")
        return endpoint

    @field_validator("s3_bucket")
    @classmethod
    def _bucket_name(cls, bucket: str) -> str:
        if not BUCKET.fullmatch(bucket):
            raise ValueError("a bucket's name must be 3 to 63 characters a-z, 0-9, '-' and single dots")
        return bucket


def _has_good_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0  # the property raises if it is no number or too large
    except ValueError:
        return False


def _is_http(url: str) -> bool:
    if not url.startswith(("http://", "https://")) or re.search(r"\s", url) or not _has_good_port(url):
        return False
    return bool(urlsplit(url).hostname)
