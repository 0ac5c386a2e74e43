"""What is said to have been spent is what threads did, not what they waited for."""

import asyncio
import time

import pytest

from gateway.clock import EVERY, Clock


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_passes_through_a_stage_add_up() -> None:
    clock = Clock()
    for _ in range(4 * EVERY):
        with clock.stage("work"):
            busy(0.002)
            time.sleep(0.01)
    assert 4 * EVERY * 0.002 <= clock.spent_s()["work"] < 4 * EVERY * 0.01


def test_steps_of_a_coroutine_add_up_and_what_it_awaits_does_not() -> None:
    clock = Clock()

    async def work() -> int:
        busy(0.002)
        with pytest.raises(KeyError):
            await failing()
        busy(0.002)
        return 7

    async def failing() -> None:
        await asyncio.sleep(0.01)
        raise KeyError

    async def main() -> list[int]:
        return [await clock.staged("steps", work()) for _ in range(2 * EVERY)]

    assert asyncio.run(main()) == [7] * (2 * EVERY)
    assert 2 * EVERY * 0.004 <= clock.spent_s()["steps"] < 2 * EVERY * 0.01


def test_a_measured_coroutine_is_cancelled_where_it_waits() -> None:
    clock, seen = Clock(), list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> None:
        for _ in range(EVERY):
            task = asyncio.create_task(clock.staged("steps", work()))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert seen == ["cancelled"] * EVERY
