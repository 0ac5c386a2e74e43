"""Find the largest payload in the Temporal histories of a run."""

import asyncio
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.service import RPCError

from gyre.contracts.ids import RunId, run_workflow_id
from gyre.settings.services import Services

CONNECT_S = 10


def largest_payload_bytes(services: Services, run: RunId) -> int | None:
    """Return the size of the largest payload, data and metadata, in bytes; 0 if there is no history.

    Return None if Temporal cannot be reached or stops answering.
    """
    return asyncio.run(_largest(services, run_workflow_id(run)))


async def _largest(services: Services, workflow_id: str) -> int | None:
    try:
        connecting = Client.connect(services.temporal_address, namespace=services.temporal_namespace)
        client = await asyncio.wait_for(connecting, CONNECT_S)
        # The ids of a run's child workflows begin with its own.
        query = f"WorkflowId = '{workflow_id}' OR WorkflowId STARTS_WITH '{workflow_id}/'"
        largest = 0
        async for execution in client.list_workflows(query):
            handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
            async for event in handle.fetch_history_events():
                largest = max([largest, *(payload.ByteSize() for payload in payloads(event))])
        return largest
    except (RPCError, RuntimeError, TimeoutError):
        # The SDK raises RuntimeError when no server answers its first connection.
        return None


def payloads(message: Message) -> Iterator[Payload]:
    """Yield every Payload anywhere inside a protobuf message."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        for part in _messages(field, value):
            yield from payloads(part)


def _messages(field: Any, value: Any) -> list[Message]:
    """Return the messages that a field holds, be it single, repeated or a map."""
    if field.message_type is None:
        return []
    if not field.is_repeated:
        return [value]
    if field.message_type.GetOptions().map_entry:
        return [part for part in value.values() if isinstance(part, Message)]
    return list(value)
