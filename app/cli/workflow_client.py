"""The command line's side of Temporal: start, join, wait for and cancel the workflows of a run."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import (
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.service import RPCError, RPCStatusCode

from gyre.contracts.errors import BadInput
from gyre.contracts.ids import RunId, control_queue, run_workflow_id
from gyre.contracts.messages import TrainingRunInput
from gyre.durable.client import RUN, connect
from gyre.settings.services import Services

POLL_S = 0.25


@asynccontextmanager
async def connected(services: Services) -> AsyncGenerator[Client]:
    """Yield a client. Raises BadInput when the server does not answer or goes away."""
    where = f"services.temporal_address: Temporal at {services.temporal_address}"
    try:
        client = await connect(services.temporal_address, services.temporal_namespace)
    except (RPCError, RuntimeError) as error:
        # The reason is left out: it is the Rust client's own, through several layers.
        raise BadInput(f"{where} does not answer") from error
    except ValueError as error:
        raise BadInput(f"{where} is not an address: {error}") from error
    try:
        yield client
    except RPCError as error:
        if error.status == RPCStatusCode.UNAVAILABLE:
            raise BadInput(f"{where} does not answer") from error
        reason = (error.message.splitlines() or [error.status.name])[0][:200]
        raise BadInput(f"{where} cannot be used: {reason}") from error


async def start(services: Services, run: RunId) -> None:
    """Start the run's workflow, or join the one that runs; a closed one is started anew."""
    async with connected(services) as client:
        await client.start_workflow(
            "TrainingRun",
            TrainingRunInput(run=run),
            id=run_workflow_id(run),
            task_queue=control_queue(run),
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            search_attributes=TypedSearchAttributes([SearchAttributePair(RUN, str(run))]),
            static_summary=f"training run {run}",
        )


async def is_closed(services: Services, run: RunId) -> bool:
    """Return whether the run's workflow has closed, or was never started."""
    async with connected(services) as client:
        try:
            found = await client.get_workflow_handle(run_workflow_id(run)).describe()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return True
        return found.status is not WorkflowExecutionStatus.RUNNING


async def wait_closed(services: Services, run: RunId, *, limit_s: float) -> bool:
    """Wait until no workflow of the run is open. Return False if one still is after ``limit_s``."""
    async with connected(services) as client:
        deadline = time.monotonic() + limit_s
        while await open_workflows(client, run):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_S)
    return True


async def cancel(services: Services, run: RunId, *, limit_s: float) -> None:
    """Cancel the run's workflows and terminate those that are still open after ``limit_s``."""
    async with connected(services) as client:
        # TrainingRun first, so that it starts no more children while they are cancelled.
        await _end_each(client, [run_workflow_id(run)], terminate=False)
        await _end_each(client, await open_workflows(client, run), terminate=False)
        if not await wait_closed(services, run, limit_s=limit_s):
            await _end_each(client, await open_workflows(client, run), terminate=True)


async def open_workflows(client: Client, run: RunId) -> list[str]:
    """Return the ids of the run's workflows that have not closed."""
    query = f'GyreRun = "{run}" AND ExecutionStatus = "Running"'
    return [found.id async for found in client.list_workflows(query)]


async def _end_each(client: Client, ids: list[str], *, terminate: bool) -> None:
    for name in ids:
        handle = client.get_workflow_handle(name)
        try:
            await (handle.terminate("gyre stop") if terminate else handle.cancel())
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:  # it has closed by itself in the meantime
                raise
