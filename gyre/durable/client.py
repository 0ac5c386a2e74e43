"""The Temporal client, its converter, and the search attribute keys of gyre.contracts.search."""

from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.contrib.pydantic import pydantic_data_converter

RUN = SearchAttributeKey.for_keyword("GyreRun")
GROUP = SearchAttributeKey.for_keyword("GyreGroup")
TASK = SearchAttributeKey.for_keyword("GyreTask")
STAGE = SearchAttributeKey.for_keyword("GyreStage")
DISPOSITION = SearchAttributeKey.for_keyword("GyreDisposition")
CELL = SearchAttributeKey.for_keyword("GyreCell")
POLICY_VERSION = SearchAttributeKey.for_int("GyrePolicyVersion")
REWARD = SearchAttributeKey.for_float("GyreReward")


async def connect(address: str, namespace: str = "default", *, lazy: bool = False) -> Client:
    """Connect with the pydantic converter, which every client, worker and replayer must use."""
    return await Client.connect(
        address, namespace=namespace, data_converter=pydantic_data_converter, lazy=lazy
    )
