"""Continuous batching: arrivals, departures, aborts, pauses and swaps leave every answer what it was."""

import threading
from pathlib import Path

import pytest
import torch

from gpu_workers.engine.build import read_model
from gpu_workers.engine.load_weights import Weights
from gpu_workers.engine.requests import Generation
from gyre.contracts.boot import EngineBoot
from gyre.contracts.errors import EngineFailed
from tests.engine.conftest import CONTEXT, VOCAB, Harness


def prompt_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(0, VOCAB, (length,), generator=generator).tolist()


def greedy_under(path: Path, prompt: list[int], count: int, **params: object) -> list[int]:
    """What a fresh engine with the weights at ``path`` answers alone."""
    alone = Harness(EngineBoot(model_path=str(path), port=0, epoch=1, context_tokens=CONTEXT))
    answer = alone.result(alone.ask(prompt, max_new_tokens=count, **({"temperature": 0.0} | params)))
    alone.scheduler.stop()
    return answer.output_ids


@pytest.fixture(scope="module")
def other_weights(other_path: Path) -> Weights:
    return read_model(other_path, context_tokens=CONTEXT, dtype="float32", device="cpu").weights


def test_mixed_lengths_answer_as_alone(harness: Harness) -> None:
    """More requests than rows, ending at different times, so that rows move."""
    asked = [
        (
            prompt_of(3 + 17 * i % 90),
            {"max_new_tokens": 2 + 7 * i % 23, "sampling_seed": i, "temperature": 0.8},
        )
        for i in range(20)
    ]
    together = [harness.ask(prompt, **params) for prompt, params in asked]
    answers = [harness.result(generation) for generation in together]
    for (prompt, params), answer in zip(asked, answers, strict=True):
        alone = harness.result(harness.ask(prompt, **params))
        assert alone.output_ids == answer.output_ids
        assert answer.meta_info.completion_tokens == params["max_new_tokens"]
        pairs = zip(
            alone.meta_info.output_token_logprobs, answer.meta_info.output_token_logprobs, strict=True
        )
        assert max(abs(a[0] - b[0]) for a, b in pairs) < 1e-4
    assert harness.scheduler.num_running == 0


def test_late_request_is_served_beside_a_long_one(harness: Harness) -> None:
    long = harness.ask(prompt_of(30), rid="long", max_new_tokens=800)
    harness.wait_tokens(long, 5)
    harness.result(harness.ask(prompt_of(60), rid="late", max_new_tokens=3))
    harness.result(long)
    order = [rid for rid, _ in harness.notified]
    last_of_late = len(order) - 1 - order[::-1].index("late")
    assert "long" in order[last_of_late + 1 :]


def test_long_prompt_does_not_stop_the_others(harness: Harness) -> None:
    """A prompt of several chunks lets the running request sample between them."""
    running = harness.ask(prompt_of(10), rid="running", max_new_tokens=1500)
    harness.wait_tokens(running, 2)
    steps_before = harness.scheduler.num_steps
    long = harness.ask(prompt_of(2000), rid="long", max_new_tokens=1)
    harness.result(long)
    assert harness.scheduler.num_steps - steps_before >= 4
    before = harness.notified[: [rid for rid, _ in harness.notified].index("long")]
    assert len(before) > 4
    harness.scheduler.abort_all()


def test_continuation_gives_the_rest(harness: Harness) -> None:
    prompt = prompt_of(25)
    whole = harness.result(harness.ask(prompt, max_new_tokens=40, sampling_seed=5, top_p=0.9)).output_ids
    for cut in (1, 16, 39):
        rest = harness.ask(prompt + whole[:cut], max_new_tokens=40 - cut, sampling_seed=5, top_p=0.9)
        assert harness.result(rest).output_ids == whole[cut:]


def test_siblings_share_the_prompt(harness: Harness) -> None:
    """Requests that arrive together reuse what the first of them computed."""
    harness.scheduler.pause().result(30)
    prompt = prompt_of(100)
    group = [harness.ask(prompt, max_new_tokens=3, sampling_seed=i) for i in range(4)]
    harness.scheduler.resume().result(30)
    reused = [harness.result(g).meta_info.cached_tokens for g in group]
    assert reused == [0, 96, 96, 96]
    assert harness.scheduler.num_prefilled == 100 + 3 * 4


def test_next_turn_reuses_the_answer(harness: Harness) -> None:
    prompt = prompt_of(40)
    first = harness.result(harness.ask(prompt, max_new_tokens=30, temperature=0.0))
    turn = prompt + first.output_ids + prompt_of(10, seed=1)
    assert harness.result(harness.ask(turn, max_new_tokens=1)).meta_info.cached_tokens == 64


def test_abort_running_and_waiting(harness: Harness) -> None:
    running = [harness.ask(prompt_of(10), rid=f"r{i}", max_new_tokens=1900) for i in range(8)]
    for generation in running:
        harness.wait_tokens(generation, 3)
    waiting = harness.ask(prompt_of(10), rid="waiting", max_new_tokens=5)
    harness.scheduler.abort(waiting)
    answer = harness.result(waiting)
    assert (answer.output_ids, answer.meta_info.finish_reason.type) == ([], "abort")
    harness.scheduler.abort(running[3])
    answer = harness.result(running[3])
    assert answer.meta_info.finish_reason.type == "abort"
    assert 3 <= len(answer.output_ids) < 1900
    assert not any(g.ended for i, g in enumerate(running) if i != 3)
    harness.scheduler.abort_all()
    for generation in running:
        harness.result(generation)
    harness.scheduler.flush_cache().result(30)
    assert (harness.scheduler.num_running, harness.scheduler.num_waiting) == (0, 0)


@pytest.mark.parametrize("mode", ["in_place", "retract", "abort"])
def test_pause_modes(harness: Harness, mode: str) -> None:
    expected = harness.result(harness.ask(prompt_of(20), max_new_tokens=300, sampling_seed=1)).output_ids
    generation = harness.ask(prompt_of(20), max_new_tokens=300, sampling_seed=1)
    harness.wait_tokens(generation, 5)
    harness.scheduler.pause(mode).result(30)
    count = len(generation.sampled)
    harness.scheduler.flush_cache().result(30)
    assert len(generation.sampled) == count < 300
    harness.scheduler.resume().result(30)
    answer = harness.result(generation)
    assert answer.output_ids == (expected[:count] if mode == "abort" else expected)


def test_release_holds_and_recomputes(harness: Harness) -> None:
    expected = harness.result(harness.ask(prompt_of(20), max_new_tokens=300, sampling_seed=1)).output_ids
    held = [harness.ask(prompt_of(20), max_new_tokens=300, sampling_seed=1) for _ in range(2)]
    for generation in held:
        harness.wait_tokens(generation, 5)
    harness.scheduler.release_memory().result(30)
    assert harness.scheduler.kv_bytes == 0
    harness.scheduler.abort(held[1])
    assert harness.result(held[1]).meta_info.finish_reason.type == "abort"
    harness.scheduler.resume_memory().result(30)
    assert harness.result(held[0]).output_ids == expected


def swap_midway(harness: Harness, weights: Weights, mode: str) -> tuple[Generation, int]:
    """A request that gets other weights after some tokens; returns it and how many."""
    harness.result(harness.ask(prompt_of(48), max_new_tokens=1))
    generation = harness.ask(prompt_of(50), max_new_tokens=600, sampling_seed=2)
    harness.wait_tokens(generation, 20)
    harness.scheduler.pause().result(30)
    count = len(generation.sampled)
    harness.scheduler.swap(weights, 1, mode).result(30)
    harness.scheduler.resume().result(30)
    return generation, count


def test_retract_continues_as_if_fresh(harness: Harness, other_weights: Weights, other_path: Path) -> None:
    generation, count = swap_midway(harness, other_weights, "retract")
    answer = harness.result(generation)
    assert answer.meta_info.weight_versions == [(0, count), (1, 600 - count)]
    assert answer.meta_info.mixed_kv_tokens == 0
    prefix = prompt_of(50) + answer.output_ids[:count]
    fresh = greedy_under(other_path, prefix, 600 - count, temperature=1.0, sampling_seed=2)
    assert answer.output_ids[count:] == fresh


def test_in_place_keeps_old_kv_and_says_so(
    harness: Harness, other_weights: Weights, other_path: Path
) -> None:
    generation, count = swap_midway(harness, other_weights, "in_place")
    prefilled = harness.scheduler.num_prefilled
    answer = harness.result(generation)
    assert answer.meta_info.weight_versions == [(0, count), (1, 600 - count)]
    assert answer.meta_info.mixed_kv_tokens == 600 - count
    assert harness.scheduler.num_prefilled == prefilled
    # Its KV is of two versions: later requests must not find it.
    prompt = prompt_of(50) + answer.output_ids
    later = harness.result(harness.ask(prompt, max_new_tokens=5, temperature=0.0))
    assert later.meta_info.cached_tokens == 0
    assert later.output_ids == greedy_under(other_path, prompt, 5)


def test_swap_flushes_prefixes_and_drops_nobody(harness: Harness, other_weights: Weights) -> None:
    requests = [harness.ask(prompt_of(30, seed=i), max_new_tokens=200, sampling_seed=i) for i in range(12)]
    harness.wait_tokens(requests[0], 5)
    own = harness.scheduler.model.weights
    for version, weights in enumerate([other_weights, own, other_weights], start=1):
        harness.scheduler.swap(weights, version, "retract").result(30)
    answers = [harness.result(generation).meta_info for generation in requests]
    assert all(meta.completion_tokens == 200 for meta in answers)
    assert all(sum(count for _, count in meta.weight_versions) == 200 for meta in answers)
    assert answers[-1].weight_versions == [(3, 200)]
    assert harness.scheduler.version == 3


def test_stop_and_length(harness: Harness) -> None:
    free = harness.result(harness.ask(prompt_of(20), max_new_tokens=20, temperature=0.0)).output_ids
    stopped = harness.ask(prompt_of(20), max_new_tokens=20, temperature=0.0, stop_token_ids=[free[7]])
    answer = harness.result(stopped)
    assert answer.output_ids == free[: free.index(free[7]) + 1]
    assert answer.meta_info.finish_reason.matched == free[7]
    at_end = harness.result(harness.ask(prompt_of(CONTEXT - 2), max_new_tokens=20))
    assert (len(at_end.output_ids), at_end.meta_info.finish_reason.type) == (2, "length")


def test_a_failure_reaches_every_client(harness: Harness) -> None:
    """Weights of another shape make the next step fail: nobody waits for ever."""
    requests = [harness.ask(prompt_of(10), max_new_tokens=1900) for _ in range(10)]
    harness.wait_tokens(requests[0], 3)
    harness.scheduler.model.weights = Weights(
        embed=torch.zeros(VOCAB, 3), layers=(), norm=torch.ones(3), lm_head=torch.zeros(VOCAB, 5)
    )
    harness.wait(lambda: all(generation.ended for generation in requests))
    assert all(generation.failure for generation in requests)


def ask_until_refused(harness: Harness, taken: list[Generation]) -> None:
    """Requests go on coming while the thread ends."""
    while True:
        taken.append(harness.ask(prompt_of(2), max_new_tokens=5))


def test_whoever_was_taken_while_it_failed_is_told(harness: Harness) -> None:
    """Each request is refused, or ends; none is forgotten."""
    taken = [harness.ask(prompt_of(10), max_new_tokens=1900)]
    harness.wait_tokens(taken[0], 1)
    harness.scheduler.model.weights = Weights(
        embed=torch.zeros(VOCAB, 3), layers=(), norm=torch.ones(3), lm_head=torch.zeros(VOCAB, 5)
    )
    with pytest.raises(EngineFailed):
        ask_until_refused(harness, taken)
    harness.wait(lambda: all(generation.ended for generation in taken))
    with pytest.raises(EngineFailed):
        harness.scheduler.flush_cache().result(timeout=60)


def test_a_stop_leaves_no_request_without_an_end(harness: Harness) -> None:
    taken = [harness.ask(prompt_of(10), max_new_tokens=1900)]
    stopping = threading.Thread(target=harness.scheduler.stop)
    stopping.start()
    with pytest.raises(EngineFailed):
        ask_until_refused(harness, taken)
    stopping.join()
    assert all(generation.ended for generation in taken)
