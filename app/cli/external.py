"""Check services that a run file names, migrate their database and register search attributes."""

import asyncio

import psycopg
from botocore.exceptions import BotoCoreError, ClientError
from sqlalchemy.exc import OperationalError
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest

from app.cli.workflow_client import connected
from db import migrate
from db.object_store import s3_client
from gyre.contracts.errors import BadInput
from gyre.contracts.search import SEARCH_ATTRIBUTES
from gyre.settings.services import Services

KINDS = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
}


def prepare(services: Services) -> None:
    """Make Postgres, S3 and Temporal ready. Raises BadInput that names the service that cannot be used."""
    _prepare_postgres(services)
    _check_s3(services)
    asyncio.run(_register_search_attributes(services))


def _prepare_postgres(services: Services) -> None:
    where = services.postgres_dsn.rpartition("@")[2].partition("?")[
        0
    ]  # the parts cut off may hold a password
    try:
        psycopg.connect(services.postgres_dsn, connect_timeout=5).close()
        migrate.upgrade(services.postgres_dsn)
    except (psycopg.Error, OperationalError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadInput(f"services.postgres_dsn: Postgres at {where} cannot be used: {reason}") from error


def _check_s3(services: Services) -> None:
    where = services.s3_endpoint or "AWS"
    try:
        s3_client(services).head_bucket(Bucket=services.s3_bucket)
    except (BotoCoreError, ClientError) as error:
        raise BadInput(
            f"services.s3_bucket = '{services.s3_bucket}' at {where} cannot be used: {error}"
        ) from error


async def _register_search_attributes(services: Services) -> None:
    async with connected(services) as client:
        listed = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=services.temporal_namespace)
        )
        missing = SEARCH_ATTRIBUTES.keys() - listed.custom_attributes.keys()
        if missing:
            await client.operator_service.add_search_attributes(
                AddSearchAttributesRequest(
                    namespace=services.temporal_namespace,
                    search_attributes={name: KINDS[SEARCH_ATTRIBUTES[name]] for name in missing},
                )
            )
