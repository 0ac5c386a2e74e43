"""The gateway's engine client follows an embedded engine's stream to the same answer as without one."""

import asyncio

import pytest

from db.models import CellRow, RunRow
from db.session import Database, transaction
from gateway.clock import Clock
from gateway.engines import Engines, Sampled
from gateway.store import Store
from gyre.contracts.engine import SamplingParams
from gyre.contracts.ids import RunId
from gyre.trajectory.arrays import as_ids


def test_a15_followed_and_plain_answers_are_the_same(database: Database, engine_url: str) -> None:
    with transaction(database) as session:
        session.add(RunRow(id="r", secret=b"s"))
        session.flush()
        session.add(CellRow(id="run/r/cell/0", run_id="r", index=0, capacity=8, engine_url=engine_url))
    told: list[list[int]] = []
    params = SamplingParams(max_new_tokens=40, sampling_seed=7)

    async def ask() -> tuple[Sampled, Sampled]:
        clock = Clock()
        store = Store(database, hold_s=30)
        engines = Engines(RunId("r"), store, clock, hold_s=30, read_timeout_s=60)
        prompt = as_ids([3, 1, 4, 1, 5])
        try:
            plain = await engines.sample("plain", prompt, params, "a")
            return plain, await engines.sample("followed", prompt, params, "a", told.append)
        finally:
            await engines.close()
            store.close()

    plain, followed = asyncio.run(ask())
    assert (followed.ids, followed.versions) == (plain.ids, plain.versions)
    # Prompt tokens that were cached are not computed again: the same numbers, rounded otherwise.
    assert followed.logprobs == pytest.approx(plain.logprobs, abs=1e-5)
    assert followed.finish_reason == plain.finish_reason
    assert len(told) > 1
    assert told[-1] == plain.ids
    assert all(ids == plain.ids[: len(ids)] for ids in told)
