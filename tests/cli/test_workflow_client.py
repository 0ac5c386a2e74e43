"""An unusable Temporal is reported in one short sentence that names its key."""

import asyncio

import pytest

from app.cli import workflow_client
from gyre.contracts.errors import BadInput
from gyre.contracts.ids import RunId
from gyre.settings import Services


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:1", "does not answer"), ("host:abc", "is not an address: invalid target URL")],
)
def test_an_unusable_temporal_is_named_by_its_key(address: str, reason: str) -> None:
    # Not validated, as in a record that was edited by hand.
    services = Services.model_construct(temporal_address=address, temporal_namespace="default")
    with pytest.raises(
        BadInput, match=rf"^services\.temporal_address: Temporal at {address} {reason}"
    ) as told:
        asyncio.run(workflow_client.is_closed(services, RunId("r")))
    assert "tonic" not in str(told.value)
