"""The embedded services come up, keep data and have the promised settings."""

import asyncio

import boto3
import psycopg
from botocore.config import Config
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from gyre.settings import Services


def test_postgres_is_migrated_and_durable(services: Services) -> None:
    with psycopg.connect(services.postgres_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM alembic_version").fetchone() == (1,)
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
        assert connection.execute("SHOW fsync").fetchone() == ("on",)


def test_s3_has_the_bucket_and_checks_keys(services: Services) -> None:
    s3 = boto3.client(
        "s3",
        endpoint_url=services.s3_endpoint,
        aws_access_key_id=services.s3_access_key,
        aws_secret_access_key=services.s3_secret_key,
        region_name=services.s3_region,
        config=Config(s3={"addressing_style": "path"}),
    )
    s3.put_object(Bucket=services.s3_bucket, Key="a/b", Body=b"x")
    assert s3.get_object(Bucket=services.s3_bucket, Key="a/b")["Body"].read() == b"x"


def test_temporal_keeps_thirty_days_and_has_our_search_attributes(services: Services) -> None:
    async def read() -> tuple[int, dict[str, int]]:
        client = await Client.connect(services.temporal_address, namespace=services.temporal_namespace)
        described = await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=services.temporal_namespace)
        )
        listed = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=services.temporal_namespace)
        )
        retention = described.config.workflow_execution_retention_ttl.ToTimedelta().days
        return retention, dict(listed.custom_attributes)

    days, attributes = asyncio.run(read())
    assert days == 30
    assert attributes["GyreRun"] == IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    assert attributes["GyrePolicyVersion"] == IndexedValueType.INDEXED_VALUE_TYPE_INT
    assert attributes["GyreReward"] == IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE
    assert {"GyreGroup", "GyreTask", "GyreStage", "GyreDisposition", "GyreCell"} <= attributes.keys()
