"""The audit covers S3 and Temporal too, and reports what it cannot read."""

import asyncio
import socket
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from temporalio.client import Client

from app.audit.history import largest_payload_bytes
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import RunId
from gyre.settings import Services
from tests.audit.conftest import Audited

WEIGHTS = "SELECT weights_key FROM checkpoint WHERE version = 1"
WORKSPACE = "SELECT min(blob_key) FROM snapshot"


@pytest.fixture
def shared(audited: Audited, s3: Any) -> Iterator[Any]:
    """The S3 client. Afterwards the small run's objects are restored, because other tests share them."""
    bucket = audited.services.s3_bucket
    keys = [audited.value(statement) for statement in (WEIGHTS, WORKSPACE)]
    contents = {key: s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}
    yield s3
    for key, content in contents.items():
        s3.put_object(Bucket=bucket, Key=key, Body=content)


def test_weights_missing_from_s3_are_found(audited: Audited, shared: Any) -> None:
    shared.delete_object(Bucket=audited.services.s3_bucket, Key=audited.value(WEIGHTS))
    report = audited.audit()
    assert not report.checks["versions_durable"]
    assert report.versions == 2


def test_a_flipped_byte_of_the_weights_is_found(audited: Audited, shared: Any) -> None:
    place = {"Bucket": audited.services.s3_bucket, "Key": audited.value(WEIGHTS)}
    content = bytearray(shared.get_object(**place)["Body"].read())
    content[-1] ^= 1
    shared.put_object(**place, Body=bytes(content))
    assert not audited.audit().checks["versions_durable"]


def test_weights_replaced_together_with_their_hash_are_found(audited: Audited, shared: Any) -> None:
    """The blob row vouches for the new object, but its payload is not the one that was published."""
    place = {"Bucket": audited.services.s3_bucket, "Key": audited.value(WEIGHTS)}
    content = bytearray(shared.get_object(**place)["Body"].read())
    content[-1] ^= 1
    shared.put_object(**place, Body=bytes(content))
    audited.change(
        f"UPDATE blob SET sha256 = encode(sha256('\\x{content.hex()}'::bytea), 'hex') WHERE key = ({WEIGHTS})"
    )
    violations = audited.audit().violations
    assert any("the weights of version 1 have sha256" in violation for violation in violations)


def test_a_snapshot_missing_from_s3_is_found(audited: Audited, shared: Any) -> None:
    shared.delete_object(Bucket=audited.services.s3_bucket, Key=audited.value(WORKSPACE))
    assert not audited.audit().checks["snapshots_durable"]


def test_the_largest_payload_is_measured_in_the_histories_of_the_run_only(services: Services) -> None:
    run = f"payloads-{uuid.uuid4().hex[:8]}"
    asyncio.run(_start(services, {f"run/{run}": 100, f"run/{run}/group/0": 3000, f"run/{run}x": 9000}))
    largest = largest_payload_bytes(services, RunId(run))
    assert largest is not None
    assert 3000 < largest < 3100


async def _start(services: Services, sizes: dict[str, int]) -> None:
    client = await Client.connect(services.temporal_address, namespace=services.temporal_namespace)
    for name, size in sizes.items():
        await client.start_workflow("Unserved", "x" * size, id=name, task_queue="unserved")
    # Temporal lists a workflow some time after its start.
    for name in sizes:
        while not [w async for w in client.list_workflows(f"WorkflowId = '{name}'")]:
            await asyncio.sleep(0.05)


def test_a_large_payload_is_a_violation(audited: Audited) -> None:
    name = f"run/audited/{uuid.uuid4().hex}"
    asyncio.run(_start(audited.services, {name: 20_000}))
    try:
        report = audited.audit()
        assert not report.checks["payloads_small"]
        assert report.largest_payload_bytes is not None
        assert report.largest_payload_bytes > 20_000
    finally:
        asyncio.run(_delete(audited.services, name))


async def _delete(services: Services, name: str) -> None:
    from temporalio.api.common.v1 import WorkflowExecution
    from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

    client = await Client.connect(services.temporal_address, namespace=services.temporal_namespace)
    await client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=services.temporal_namespace, workflow_execution=WorkflowExecution(workflow_id=name)
        )
    )
    while [w async for w in client.list_workflows(f"WorkflowId = '{name}'")]:
        await asyncio.sleep(0.05)


def test_without_temporal_the_largest_payload_is_null_and_the_rest_is_audited(audited: Audited) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        services = audited.services.model_copy(update={"temporal_address": address})
        report = Audited(services, audited.session).audit(max_tokens=0)
    assert report.largest_payload_bytes is None
    assert report.clean


def test_an_unknown_run_is_one_sentence(audited: Audited) -> None:
    audited.change("UPDATE run SET status = 'failed'")
    audited.change("DELETE FROM run_config")
    with pytest.raises(BadInput, match="no run 'audited'"):
        audited.audit()


def test_a_model_folder_that_moved_is_one_sentence(audited: Audited) -> None:
    audited.change("""UPDATE run_config SET resolved = jsonb_set(resolved, '{model,path}', '"/nowhere"')""")
    with pytest.raises(BadInput, match=r"model\.path of the run, /nowhere, cannot be read"):
        audited.audit()
