"""The leases that a gateway holds, and releases."""

import asyncio
from datetime import datetime

import pytest

from db import calls
from db.session import transaction
from gateway.live_attempt import LiveCall, load_attempt
from gateway.recorder import Recorder
from gateway.store import Store
from gyre.contracts.engine import SamplingParams
from gyre.contracts.ids import call_id
from tests.gateway.conftest import World, lose_every_other_answer

NEW = calls.NewCall("openai", "main", "k", {}, num_input_tokens=1, num_reused_tokens=0, input_sha256="s")


def sampling(index: int) -> SamplingParams:
    return SamplingParams(
        temperature=1, top_p=1, top_k=-1, max_new_tokens=1, stop_token_ids=[], sampling_seed=index
    )


def leases(world: World) -> list[datetime]:
    return [call.lease_expires_at for call in world.calls() if call.lease_expires_at]


def test_a_call_recorded_twice_is_held_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the connection is lost after the commit, the first row belongs to nobody and its lease expires."""
    store = Store(world.database, hold_s=10)
    recorder = Recorder(store, "here:1")
    with transaction(world.database) as session:
        live = load_attempt(session, world.attempt)
    lose_every_other_answer(monkeypatch)
    assert asyncio.run(recorder.begin(live, live.take_index(), NEW, sampling)) == 1
    before = leases(world)
    asyncio.run(recorder.renew())
    after = leases(world)
    assert after[0] == before[0]
    assert after[1] > before[1]
    recorder.release(LiveCall(call_id(world.attempt, 1), "k", 1, 1, connected=False))
    asyncio.run(recorder.renew())
    assert leases(world) == after
    store.close()
