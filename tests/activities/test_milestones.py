"""Milestones reach a rollout's history, at most once per minute."""

import asyncio
import json

import pytest
from sqlalchemy import func
from temporalio.api.enums.v1 import EventType

from activities.milestones import Milestones
from db import attempts
from db.models import ModelCallRow
from db.session import Database, connect, transaction
from gyre.contracts.ids import AttemptId, ExecutionId, call_id
from gyre.durable import client as durable
from gyre.settings import Services


def add_call(database: Database, execution: ExecutionId, attempt: AttemptId, index: int) -> None:
    with transaction(database) as session:
        session.add(
            ModelCallRow(
                id=call_id(attempt, index),
                attempt_id=attempt,
                execution_id=execution,
                run_id="r",
                index=index,
                status="committed",
                dialect="openai",
                request_key="k",
                requested={},
                sampling={},
                num_output_tokens=7,
                committed_at=func.now(),
            )
        )


def test_at_most_one_signal_per_minute_and_only_with_news(
    database: Database, services: Services, execution: ExecutionId
) -> None:
    with transaction(database) as session:
        attempt = AttemptId(attempts.open_attempt(session, execution, 1, "h").id)
    now = 0.0

    async def follow() -> list[str]:
        nonlocal now
        client = await durable.connect(services.temporal_address)
        rollout = await client.start_workflow("Rollout", id=execution, task_queue="nobody")
        milestones = Milestones(database, attempt, lambda: rollout, clock=lambda: now)
        for index, second in enumerate((1.0, 59.0, 61.0, 90.0, 121.0, 200.0)):
            now = second
            if index < 4:
                add_call(database, execution, attempt, index)
            await milestones.signal_if_due()
        history = await rollout.fetch_history()
        await rollout.terminate()
        return [
            json.loads(event.workflow_execution_signaled_event_attributes.input.payloads[0].data)
            for event in history.events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
        ]

    assert asyncio.run(follow()) == [
        "attempt 1, 1 min: 3 calls, 21 tokens sampled, 0 branches",
        "attempt 1, 2 min: 4 calls, 28 tokens sampled, 0 branches",
    ]


def test_a_database_outage_does_not_end_the_harness() -> None:
    times = iter((0.0, 61.0, 122.0))
    away = connect("postgresql://gyre@127.0.0.1:1/gyre")
    attempt = AttemptId("run/r/group/0/rollout/0/attempt/1")
    milestones = Milestones(away, attempt, lambda: pytest.fail("nothing was read"), clock=lambda: next(times))
    for _ in range(2):
        asyncio.run(milestones.signal_if_due())
    away.dispose()
