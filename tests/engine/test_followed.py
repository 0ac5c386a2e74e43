"""The gateway's engine client reads the same answer from an embedded engine with and without a stream."""

import asyncio

import pytest

from db.models import CellRow, RunRow
from db.session import Database, transaction
from gateway.engines import Engines, SampledAnswer
from gateway.store import Store
from gyre.contracts.engine import SamplingParams
from gyre.contracts.ids import RunId
from gyre.trajectory.arrays import as_ids


def test_streamed_and_plain_answers_are_the_same(database: Database, engine_url: str) -> None:
    """Reported failure: a streamed call was recorded without its token ids."""
    with transaction(database) as session:
        session.add(RunRow(id="r", secret=b"s"))
        session.flush()
        session.add(CellRow(id="run/r/cell/0", run_id="r", index=0, capacity=8, engine_url=engine_url))
    emitted: list[list[int]] = []
    params = SamplingParams(max_new_tokens=40, sampling_seed=7)

    async def ask() -> tuple[SampledAnswer, SampledAnswer]:
        store = Store(database, hold_s=30)
        engines = Engines(RunId("r"), store, hold_s=30, read_timeout_s=60)
        prompt = as_ids([3, 1, 4, 1, 5])
        try:
            plain = await engines.sample("plain", prompt, params, "a")
            return plain, await engines.sample("followed", prompt, params, "a", emitted.append)
        finally:
            await engines.close()
            store.close()

    plain, followed = asyncio.run(ask())
    assert (followed.ids, followed.versions) == (plain.ids, plain.versions)
    # The second request reuses cached prompt tokens: the same numbers, rounded differently.
    assert followed.logprobs == pytest.approx(plain.logprobs, abs=1e-5)
    assert followed.finish_reason == plain.finish_reason
    assert len(emitted) > 1
    assert emitted[-1] == plain.ids
    assert all(ids == plain.ids[: len(ids)] for ids in emitted)
