"""S3 objects that a Postgres row vouches for: reserve, upload, confirm."""

from gyre.store.blobs import BlobStore

__all__ = ["BlobStore"]
