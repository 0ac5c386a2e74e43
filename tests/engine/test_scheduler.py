"""Continuous batching: arrivals, departures, aborts, pauses and swaps change no answer."""

import threading
from pathlib import Path

import pytest
import torch

from gpu_workers.engine.build import read_model
from gpu_workers.engine.load_weights import Weights
from gpu_workers.engine.requests import Generation
from gyre.contracts.boot import EngineBoot
from gyre.contracts.errors import EngineFailed
from tests.engine.conftest import CONTEXT, VOCAB, SchedulerDriver


def prompt_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(0, VOCAB, (length,), generator=generator).tolist()


def greedy_under(path: Path, prompt: list[int], count: int, **params: object) -> list[int]:
    """Return what a fresh scheduler with the weights at ``path`` answers to this request alone."""
    alone = SchedulerDriver(EngineBoot(model_path=str(path), port=0, epoch=1, context_tokens=CONTEXT))
    answer = alone.result(alone.ask(prompt, max_new_tokens=count, **({"temperature": 0.0} | params)))
    alone.scheduler.stop()
    return answer.output_ids


@pytest.fixture(scope="module")
def other_weights(other_path: Path) -> Weights:
    return read_model(other_path, context_tokens=CONTEXT, dtype="float32", device="cpu").weights


def test_mixed_lengths_answer_as_alone(driver: SchedulerDriver) -> None:
    """Send more requests than rows that end at different times, so that rows move."""
    asked = [
        (
            prompt_of(3 + 17 * i % 90),
            {"max_new_tokens": 2 + 7 * i % 23, "sampling_seed": i, "temperature": 0.8},
        )
        for i in range(20)
    ]
    together = [driver.ask(prompt, **params) for prompt, params in asked]
    answers = [driver.result(generation) for generation in together]
    for (prompt, params), answer in zip(asked, answers, strict=True):
        alone = driver.result(driver.ask(prompt, **params))
        assert alone.output_ids == answer.output_ids
        assert answer.meta_info.completion_tokens == params["max_new_tokens"]
        pairs = zip(
            alone.meta_info.output_token_logprobs, answer.meta_info.output_token_logprobs, strict=True
        )
        assert max(abs(a[0] - b[0]) for a, b in pairs) < 1e-4
    assert driver.scheduler.num_running == 0


def test_late_request_is_served_alongside_a_long_one(driver: SchedulerDriver) -> None:
    long = driver.ask(prompt_of(30), rid="long", max_new_tokens=800)
    driver.wait_tokens(long, 5)
    driver.result(driver.ask(prompt_of(60), rid="late", max_new_tokens=3))
    driver.result(long)
    order = [rid for rid, _ in driver.notified]
    last_of_late = len(order) - 1 - order[::-1].index("late")
    assert "long" in order[last_of_late + 1 :]


def test_long_prompt_does_not_stop_the_others(driver: SchedulerDriver) -> None:
    """Check that a running request samples between the chunks of a long prompt."""
    running = driver.ask(prompt_of(10), rid="running", max_new_tokens=1500)
    driver.wait_tokens(running, 2)
    steps_before = driver.scheduler.num_steps
    long = driver.ask(prompt_of(2000), rid="long", max_new_tokens=1)
    driver.result(long)
    assert driver.scheduler.num_steps - steps_before >= 4
    before = driver.notified[: [rid for rid, _ in driver.notified].index("long")]
    assert len(before) > 4
    driver.scheduler.abort_all()


def test_continuation_gives_the_rest(driver: SchedulerDriver) -> None:
    prompt = prompt_of(25)
    whole = driver.result(driver.ask(prompt, max_new_tokens=40, sampling_seed=5, top_p=0.9)).output_ids
    for cut in (1, 16, 39):
        rest = driver.ask(prompt + whole[:cut], max_new_tokens=40 - cut, sampling_seed=5, top_p=0.9)
        assert driver.result(rest).output_ids == whole[cut:]


def test_siblings_share_the_prompt(driver: SchedulerDriver) -> None:
    """Check that requests which arrive together reuse what the first one computed."""
    driver.scheduler.pause().result(30)
    prompt = prompt_of(100)
    group = [driver.ask(prompt, max_new_tokens=3, sampling_seed=i) for i in range(4)]
    driver.scheduler.resume().result(30)
    reused = [driver.result(g).meta_info.cached_tokens for g in group]
    assert reused == [0, 96, 96, 96]
    assert driver.scheduler.num_prefilled == 100 + 3 * 4


def test_next_turn_reuses_the_answer(driver: SchedulerDriver) -> None:
    prompt = prompt_of(40)
    first = driver.result(driver.ask(prompt, max_new_tokens=30, temperature=0.0))
    turn = prompt + first.output_ids + prompt_of(10, seed=1)
    assert driver.result(driver.ask(turn, max_new_tokens=1)).meta_info.cached_tokens == 64


def test_abort_running_and_waiting(driver: SchedulerDriver) -> None:
    running = [driver.ask(prompt_of(10), rid=f"r{i}", max_new_tokens=1900) for i in range(8)]
    for generation in running:
        driver.wait_tokens(generation, 3)
    waiting = driver.ask(prompt_of(10), rid="waiting", max_new_tokens=5)
    driver.scheduler.abort(waiting)
    answer = driver.result(waiting)
    assert (answer.output_ids, answer.meta_info.finish_reason.type) == ([], "abort")
    driver.scheduler.abort(running[3])
    answer = driver.result(running[3])
    assert answer.meta_info.finish_reason.type == "abort"
    assert 3 <= len(answer.output_ids) < 1900
    assert not any(g.ended for i, g in enumerate(running) if i != 3)
    driver.scheduler.abort_all()
    for generation in running:
        driver.result(generation)
    driver.scheduler.flush_cache().result(30)
    assert (driver.scheduler.num_running, driver.scheduler.num_waiting) == (0, 0)


@pytest.mark.parametrize("mode", ["in_place", "retract", "abort"])
def test_pause_modes(driver: SchedulerDriver, mode: str) -> None:
    expected = driver.result(driver.ask(prompt_of(20), max_new_tokens=300, sampling_seed=1)).output_ids
    generation = driver.ask(prompt_of(20), max_new_tokens=300, sampling_seed=1)
    driver.wait_tokens(generation, 5)
    driver.scheduler.pause(mode).result(30)
    count = len(generation.sampled)
    driver.scheduler.flush_cache().result(30)
    assert len(generation.sampled) == count < 300
    driver.scheduler.resume().result(30)
    answer = driver.result(generation)
    assert answer.output_ids == (expected[:count] if mode == "abort" else expected)


def test_release_holds_and_recomputes(driver: SchedulerDriver) -> None:
    expected = driver.result(driver.ask(prompt_of(20), max_new_tokens=300, sampling_seed=1)).output_ids
    held = [driver.ask(prompt_of(20), max_new_tokens=300, sampling_seed=1) for _ in range(2)]
    for generation in held:
        driver.wait_tokens(generation, 5)
    driver.scheduler.release_memory().result(30)
    assert driver.scheduler.kv_bytes == 0
    driver.scheduler.abort(held[1])
    assert driver.result(held[1]).meta_info.finish_reason.type == "abort"
    driver.scheduler.resume_memory().result(30)
    assert driver.result(held[0]).output_ids == expected


def swap_midway(driver: SchedulerDriver, weights: Weights, mode: str) -> tuple[Generation, int]:
    """Swap weights during a request. Returns the request and its number of tokens at the swap."""
    driver.result(driver.ask(prompt_of(48), max_new_tokens=1))
    generation = driver.ask(prompt_of(50), max_new_tokens=600, sampling_seed=2)
    driver.wait_tokens(generation, 20)
    driver.scheduler.pause().result(30)
    count = len(generation.sampled)
    driver.scheduler.swap(weights, 1, mode).result(30)
    driver.scheduler.resume().result(30)
    return generation, count


def test_retract_continues_as_if_fresh(
    driver: SchedulerDriver, other_weights: Weights, other_path: Path
) -> None:
    generation, count = swap_midway(driver, other_weights, "retract")
    answer = driver.result(generation)
    assert answer.meta_info.weight_versions == [(0, count), (1, 600 - count)]
    assert answer.meta_info.mixed_kv_tokens == 0
    prefix = prompt_of(50) + answer.output_ids[:count]
    fresh = greedy_under(other_path, prefix, 600 - count, temperature=1.0, sampling_seed=2)
    assert answer.output_ids[count:] == fresh


def test_in_place_keeps_old_kv_and_reports_it(
    driver: SchedulerDriver, other_weights: Weights, other_path: Path
) -> None:
    generation, count = swap_midway(driver, other_weights, "in_place")
    prefilled = driver.scheduler.num_prefilled
    answer = driver.result(generation)
    assert answer.meta_info.weight_versions == [(0, count), (1, 600 - count)]
    assert answer.meta_info.mixed_kv_tokens == 600 - count
    assert driver.scheduler.num_prefilled == prefilled
    # Its KV comes from two versions, so later requests must not find it.
    prompt = prompt_of(50) + answer.output_ids
    later = driver.result(driver.ask(prompt, max_new_tokens=5, temperature=0.0))
    assert later.meta_info.cached_tokens == 0
    assert later.output_ids == greedy_under(other_path, prompt, 5)


def test_swap_flushes_prefixes_and_drops_no_request(driver: SchedulerDriver, other_weights: Weights) -> None:
    requests = [driver.ask(prompt_of(30, seed=i), max_new_tokens=200, sampling_seed=i) for i in range(12)]
    driver.wait_tokens(requests[0], 5)
    own = driver.scheduler.model.weights
    for version, weights in enumerate([other_weights, own, other_weights], start=1):
        driver.scheduler.swap(weights, version, "retract").result(30)
    answers = [driver.result(generation).meta_info for generation in requests]
    assert all(meta.completion_tokens == 200 for meta in answers)
    assert all(sum(count for _, count in meta.weight_versions) == 200 for meta in answers)
    assert answers[-1].weight_versions == [(3, 200)]
    assert driver.scheduler.version == 3


def test_stop_and_length(driver: SchedulerDriver) -> None:
    free = driver.result(driver.ask(prompt_of(20), max_new_tokens=20, temperature=0.0)).output_ids
    stopped = driver.ask(prompt_of(20), max_new_tokens=20, temperature=0.0, stop_token_ids=[free[7]])
    answer = driver.result(stopped)
    assert answer.output_ids == free[: free.index(free[7]) + 1]
    assert answer.meta_info.finish_reason.matched == free[7]
    at_end = driver.result(driver.ask(prompt_of(CONTEXT - 2), max_new_tokens=20))
    assert (len(at_end.output_ids), at_end.meta_info.finish_reason.type) == (2, "length")


def test_a_failure_reaches_every_client(driver: SchedulerDriver) -> None:
    """Make the next step fail by weights of a wrong shape; no client may wait forever."""
    requests = [driver.ask(prompt_of(10), max_new_tokens=1900) for _ in range(10)]
    driver.wait_tokens(requests[0], 3)
    driver.scheduler.model.weights = Weights(
        embed=torch.zeros(VOCAB, 3), layers=(), norm=torch.ones(3), lm_head=torch.zeros(VOCAB, 5)
    )
    driver.wait(lambda: all(generation.ended for generation in requests))
    assert all(generation.failure for generation in requests)


def ask_until_refused(driver: SchedulerDriver, accepted: list[Generation]) -> None:
    """Keep sending requests while the thread ends, until one is refused."""
    while True:
        accepted.append(driver.ask(prompt_of(2), max_new_tokens=5))


def test_every_request_accepted_during_a_failure_ends(driver: SchedulerDriver) -> None:
    """Check that each request is either refused or ends; none is forgotten."""
    accepted = [driver.ask(prompt_of(10), max_new_tokens=1900)]
    driver.wait_tokens(accepted[0], 1)
    driver.scheduler.model.weights = Weights(
        embed=torch.zeros(VOCAB, 3), layers=(), norm=torch.ones(3), lm_head=torch.zeros(VOCAB, 5)
    )
    with pytest.raises(EngineFailed):
        ask_until_refused(driver, accepted)
    driver.wait(lambda: all(generation.ended for generation in accepted))
    with pytest.raises(EngineFailed):
        driver.scheduler.flush_cache().result(timeout=60)


def test_stop_ends_every_request(driver: SchedulerDriver) -> None:
    accepted = [driver.ask(prompt_of(10), max_new_tokens=1900)]
    stopping = threading.Thread(target=driver.scheduler.stop)
    stopping.start()
    with pytest.raises(EngineFailed):
        ask_until_refused(driver, accepted)
    stopping.join()
    assert all(generation.ended for generation in accepted)
