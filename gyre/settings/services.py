"""Where Temporal, Postgres and S3 are: found by the embedded stack or given in ``[services]``."""

from pydantic import BaseModel, ConfigDict


class Services(BaseModel):
    """Addresses and credentials that a process needs to reach the outside."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temporal_address: str
    """``host:port`` of the Temporal frontend."""
    temporal_namespace: str = "default"
    temporal_ui: str | None = None
    """Address of Temporal's web UI, for people."""
    postgres_dsn: str
    """A libpq URL: ``postgresql://user:password@host:port/database``."""
    s3_endpoint: str | None = None
    """None means AWS's own endpoint."""
    s3_bucket: str = "gyre"
    s3_access_key: str
    s3_secret_key: str
    s3_region: str = "us-east-1"
