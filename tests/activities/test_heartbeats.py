"""Heartbeats reach Temporal while an activity is busy, and only then."""

import asyncio
import threading
import time

import pytest
from temporalio.testing import ActivityEnvironment

from activities import heartbeats as module
from activities.heartbeats import heartbeats, heartbeats_from_thread, poll


def test_a_blocked_thread_sends_heartbeats_until_the_block_ends() -> None:
    enough, senders = threading.Event(), []
    environment, threads = ActivityEnvironment(), threading.active_count()

    def receive(*_: object) -> None:
        senders.append(threading.get_ident())
        if len(senders) == 4:
            enough.set()

    def block() -> None:
        with heartbeats_from_thread(0.01):
            assert enough.wait(30)

    environment.on_heartbeat = receive
    environment.run(block)
    assert threading.get_ident() not in senders
    assert threading.active_count() == threads
    num_sent = len(senders)
    time.sleep(0.1)
    assert len(senders) == num_sent


def test_an_awaiting_block_sends_heartbeats_until_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.01)
    enough, received = asyncio.Event(), 0

    def receive(*_: object) -> None:
        nonlocal received
        received += 1
        if received == 4:
            enough.set()

    async def block() -> None:
        async with heartbeats():
            await asyncio.wait_for(enough.wait(), 30)
            raise ValueError("the work failed")

    async def scene() -> None:
        environment = ActivityEnvironment()
        environment.on_heartbeat = receive
        with pytest.raises(ValueError, match="the work failed"):
            await environment.run(block)
        num_received = received
        await asyncio.sleep(0.1)
        assert received == num_received

    asyncio.run(scene())


def test_a_poll_sends_a_heartbeat_each_time_and_returns_the_first_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0)
    answers, beats = iter([None, None, 0, 1]), []
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *details: beats.append(details)
    assert asyncio.run(environment.run(poll, lambda: next(answers))) == 0
    assert beats == [()] * 3
