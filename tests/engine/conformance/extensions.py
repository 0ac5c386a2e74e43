"""Checks of Gyre's own routes and fields: versions, fences, weight pulls, memory release, strictness."""

import time
from collections.abc import Callable
from typing import Any

import httpx

from gyre.contracts.engine import EngineInfo
from tests.engine.conformance.client import EngineUnderTest, require


def info(engine: EngineUnderTest) -> EngineInfo:
    """Return the server's answer to ``/get_server_info``."""
    return EngineInfo.model_validate(engine.http.get("/get_server_info").json())


def answers_have_versions(engine: EngineUnderTest) -> None:
    meta = engine.greedy(5).meta
    require(meta.weight_versions == [(info(engine).weight_version, 5)], f"spans are {meta.weight_versions}")
    require(meta.mixed_kv_tokens == 0, "tokens count as mixed without a publication")


def waiting_request_aborts_empty(engine: EngineUnderTest) -> None:
    engine.command("/pause_generation")
    try:
        held = engine.in_background(lambda: engine.generate(engine.prompt(), rid="conformance-waiting"))
        while not held.finished_within(0.05):
            engine.command("/abort_request", rid="conformance-waiting")
    finally:
        engine.command("/continue_generation")
    answer = held.result()
    require(answer.finish == "abort" and answer.ids == [], f"{answer.finish} with {answer.ids}")


def disconnect_frees_the_slot(engine: EngineUnderTest) -> None:
    with engine.stream(engine.prompt(), temperature=0.0, max_new_tokens=engine.long_tokens) as events:
        next(events)
    before = info(engine).num_running
    longest = engine.greedy(engine.long_tokens, engine.prompt(30))
    after = info(engine).num_running
    require(len(longest.ids) == engine.long_tokens, "the next request was cut")
    require(after == 0, f"{before} running after a disconnect, {after} after the next answer")


def disconnect_ends_a_waiting_request(engine: EngineUnderTest) -> None:
    engine.command("/pause_generation")
    try:
        body = {"input_ids": engine.prompt()}
        try:
            engine.http.post("/generate", json=body, timeout=httpx.Timeout(10, read=0.2))
        except httpx.ReadTimeout:
            pass
        else:
            raise AssertionError("a paused engine answered")
        until = time.monotonic() + 10
        while info(engine).extra["num_waiting"] and time.monotonic() < until:
            time.sleep(0.02)
        require(info(engine).extra["num_waiting"] == 0, "a waiting request outlived its client")
    finally:
        engine.command("/continue_generation")


def released_memory_holds_requests(engine: EngineUnderTest) -> None:
    expected = engine.greedy(8)
    engine.command("/release_memory_occupation")
    try:
        require(info(engine).extra["kv_bytes"] == 0, "the KV cache is still held")
        held = engine.in_background(lambda: engine.greedy(8))
        require(not held.finished_within(0.3), "a released engine answered")
    finally:
        engine.command("/resume_memory_occupation")
    require(held.result().ids == expected.ids, "the answer changed across a release")


def context_bounds_the_answer(engine: EngineUnderTest) -> None:
    context = info(engine).context_tokens
    full = engine.greedy(100, engine.prompt(context - 3))
    require(full.finish == "length" and len(full.ids) == 3, f"{full.finish} after {len(full.ids)} tokens")
    refused = engine.http.post("/generate", json={"input_ids": engine.prompt(context)})
    require(refused.status_code == 400, f"a prompt that fills the context gives {refused.status_code}")
    require("context" in refused.json()["error"]["message"], "the reason does not name the context")


def pull_is_fenced(engine: EngineUnderTest) -> None:
    now = info(engine)
    reference = {"peer": "127.0.0.1:1", "address": 1, "num_bytes": 1, "version": now.weight_version + 1}
    body: dict[str, Any] = {"reference": {**reference, "sha256": "0" * 64}, "epoch": now.epoch + 1}
    require(engine.http.post("/pull_weights", json=body).status_code == 409, "another epoch is not 409")
    body["epoch"], body["reference"]["version"] = now.epoch, now.weight_version - 1
    require(engine.http.post("/pull_weights", json=body).status_code == 409, "an older version is not 409")
    require(engine.http.post("/pull_weights", json={}).status_code == 400, "an empty pull is not 400")
    require(info(engine).weight_version == now.weight_version, "a refused pull changed the version")


def refusals_have_a_reason(engine: EngineUnderTest) -> None:
    bodies = [
        b'{"input_ids": [1], "sampling_params": {"temperature": NaN}}',
        b'{"input_ids": [1], "sampling_params": {"temperature": Infinity}}',
        b'{"input_ids": [1], "sampling_params": {"max_new_tokens": 0}}',
        b'{"input_ids": [1], "sampling_params": {"top_k": 0}}',
        b'{"input_ids": [1], "sampling_params": {"sampling_seed": -1}}',
        b'{"input_ids": [1], "sampling_params": []}',
        b'{"input_ids": [-1]}',
        b'{"input_ids": [1.5]}',
        b'{"input_ids": [true]}',
        b'{"input_ids": ["1"]}',
        b'{"input_ids": [123456789012345678901234567890]}',
        b'{"input_ids": [1], "rid": 5}',
        b'{"input_ids": [1], "stream": "yes"}',
        b"[]",
        b"null",
        b"",
        b"\xff",
    ]
    for body in bodies:
        response = engine.http.post("/generate", content=body)
        require(response.status_code == 400, f"{body!r} gives {response.status_code}")
        require(bool(response.json()["error"]["message"]), f"{body!r} is refused without a reason")
    require(engine.http.get("/nothing").json()["error"]["message"] != "", "404 without a reason")


def metrics_are_counted(engine: EngineUnderTest) -> None:
    text = engine.http.get("/metrics").text
    figures = dict(line.split(" ") for line in text.splitlines() if not line.startswith("#"))
    require(float(figures["gyre_engine_sampled_tokens_total"]) > 0, "no sampled tokens counted")


EXTENSIONS: list[Callable[[EngineUnderTest], None]] = [
    answers_have_versions,
    waiting_request_aborts_empty,
    disconnect_frees_the_slot,
    disconnect_ends_a_waiting_request,
    released_memory_holds_requests,
    context_bounds_the_answer,
    pull_is_fenced,
    refusals_have_a_reason,
    metrics_are_counted,
]
