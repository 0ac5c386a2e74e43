"""A Temporal that cannot be used is told by its key, shortly."""

import asyncio

import pytest

from app.cli import workflow_client
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import RunId
from gyre.settings import Services


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:1", "does not answer"), ("host:abc", "is no address: invalid target URL")],
)
def test_the_key_is_named(address: str, reason: str) -> None:
    # Unchecked, as in a record that was written by hand.
    services = Services.model_construct(temporal_address=address, temporal_namespace="default")
    with pytest.raises(
        BadInput, match=rf"^services\.temporal_address: Temporal at {address} {reason}"
    ) as told:
        asyncio.run(workflow_client.is_closed(services, RunId("r")))
    assert "tonic" not in str(told.value)
