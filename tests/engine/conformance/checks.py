"""Checks of the surface that the protocol shares with SGLang."""

import math
import threading
from collections.abc import Callable
from pathlib import Path

import httpx

from gyre.contracts.errors import GyreError
from tests.engine.conformance.client import EngineUnderTest, WireAnswer, require

Check = Callable[[EngineUnderTest], None]


def health(engine: EngineUnderTest) -> None:
    require(engine.http.get("/health").status_code == 200, "/health is not 200")


def greedy_repeats(engine: EngineUnderTest) -> None:
    first, again = engine.greedy(16), engine.greedy(16)
    require(len(first.ids) == 16, f"{len(first.ids)} tokens instead of 16")
    require(first.finish == "length", f"finish is {first.finish}, not length")
    require(first.ids == again.ids, "two greedy answers differ")


def seed_repeats(engine: EngineUnderTest) -> None:
    answers = [engine.generate(engine.prompt(), seed=seed, max_new_tokens=24) for seed in (7, 7, 8)]
    require(answers[0].ids == answers[1].ids, "one seed gave two different answers")
    require(answers[0].ids != answers[2].ids, "two seeds gave the same answer")


def greedy_continuation(engine: EngineUnderTest) -> None:
    whole = engine.greedy(20)
    rest = engine.greedy(12, engine.prompt() + whole.ids[:8])
    require(whole.ids[8:] == rest.ids, "the greedy continuation differs from the whole answer")


def seeded_continuation(engine: EngineUnderTest) -> None:
    whole = engine.generate(engine.prompt(), seed=11, max_new_tokens=20)
    rest = engine.generate(engine.prompt() + whole.ids[:8], seed=11, max_new_tokens=12)
    require(
        whole.ids[8:] == rest.ids,
        "the continuation under the same seed differs from the whole answer",
    )


def logprobs_are_probabilities(engine: EngineUnderTest) -> None:
    first_tokens: dict[int, float] = {}
    for seed in range(12):
        answer = engine.generate(engine.prompt(), seed=seed, max_new_tokens=4)
        require(answer.logged_ids == answer.ids, "the log-probabilities are not those of output_ids")
        require(max(answer.logprobs) <= 1e-6, "a log-probability is above 0")
        first_tokens[answer.ids[0]] = answer.logprobs[0]
    total = sum(math.exp(value) for value in first_tokens.values())
    require(total <= 1 + 1e-3, f"distinct first tokens sum to probability {total}")


def logprobs_match_transformers(engine: EngineUnderTest) -> None:
    if engine.model_path is None:
        return
    for temperature in (1.0, 0.7):
        answer = engine.generate(engine.prompt(), seed=3, temperature=temperature, max_new_tokens=24)
        expected = recompute(engine.model_path, engine.prompt(), answer.ids, temperature)
        gap = max(abs(a - b) for a, b in zip(answer.logprobs, expected, strict=True))
        # On a CPU SGLang keeps its KV cache in fp16, which was seen to cost 4e-4.
        require(gap <= 1e-3, f"log-probabilities differ from transformers by {gap:.2e}")


def recompute(model_path: Path, prompt: list[int], output: list[int], temperature: float) -> list[float]:
    """Return the log-probabilities of ``output`` after ``prompt`` under transformers in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1)[range(len(output)), output].tolist()


def streaming_is_cumulative(engine: EngineUnderTest) -> None:
    expected = engine.greedy(16)
    with engine.stream(engine.prompt(), temperature=0.0, max_new_tokens=16) as events:
        answers = list(events)
    before: list[int] = []
    for answer in answers:
        require(answer.ids[: len(before)] == before, "an event does not extend the previous one")
        before = answer.ids
    require(before == expected.ids, "the streamed answer differs from the plain one")
    require(answers[-1].finish == "length", "the last event has no finish reason")
    require(all(a.finish is None for a in answers[:-1]), "an event before the last has a finish reason")


def abort_keeps_partial(engine: EngineUnderTest) -> None:
    with engine.stream(
        engine.prompt(), rid="conformance-abort", temperature=0.0, max_new_tokens=engine.long_tokens
    ) as events:
        first = next(events)
        engine.command("/abort_request", rid="conformance-abort")
        last = [first, *events][-1]
    require(last.finish == "abort", f"finish is {last.finish}, not abort")
    require(0 < len(last.ids) < engine.long_tokens, f"{len(last.ids)} tokens after the abort")
    require(len(last.logprobs) == len(last.ids), "the partial answer lacks log-probabilities")
    rest = engine.greedy(4, engine.prompt() + last.ids)
    require(len(rest.ids) == 4, "the aborted answer cannot be continued")


def pause_holds(engine: EngineUnderTest) -> None:
    """Check that a paused engine answers nothing and that held requests complete once it continues."""
    expected = engine.greedy(8)
    engine.command("/pause_generation", mode="in_place")
    try:
        held = engine.in_background(lambda: engine.greedy(8))
        require(not held.finished_within(0.5), "a paused engine answered")
    finally:
        engine.command("/continue_generation")
    require(held.result().ids == expected.ids, "the held request gave a different answer")


def first_token_before_others_end(engine: EngineUnderTest) -> None:
    started = threading.Event()

    def long_answer() -> WireAnswer:
        with engine.stream(engine.prompt(), temperature=0.0, max_new_tokens=engine.long_tokens) as events:
            first = next(events)
            started.set()
            return [first, *events][-1]

    running = engine.in_background(long_answer)
    while not started.wait(0.05):
        require(not running.finished_within(0), "the first request ended before its first token")
    short = engine.generate(engine.prompt(40), seed=1, max_new_tokens=2)
    require(len(short.ids) == 2, "the later request got no tokens")
    require(not running.finished_within(0), "the later request waited until the first one had ended")
    require(len(running.result().ids) == engine.long_tokens, "the first request was cut")


def stop_token_is_kept(engine: EngineUnderTest) -> None:
    free = engine.greedy(12)
    stop = free.ids[5]
    answer = engine.generate(engine.prompt(), temperature=0.0, max_new_tokens=12, stop_token_ids=[stop])
    end = free.ids.index(stop) + 1
    require(answer.finish == "stop", f"finish is {answer.finish}, not stop")
    require(answer.ids == free.ids[:end], "the answer does not end with the stop token")


def prefix_is_reused(engine: EngineUnderTest) -> None:
    engine.command("/flush_cache")
    prompt = engine.prompt(96)
    cold, warm = engine.greedy(4, prompt), engine.greedy(4, prompt)
    require(cold.meta.cached_tokens == 0, f"{cold.meta.cached_tokens} tokens cached after a flush")
    cached = warm.meta.cached_tokens
    require(64 <= cached < len(prompt), f"{cached} of {len(prompt)} prompt tokens cached")
    require(cold.ids == warm.ids, "reuse changed the answer")


def bad_requests_are_refused(engine: EngineUnderTest) -> None:
    bodies: list[dict[str, object]] = [
        {"input_ids": []},
        {"input_ids": "text"},
        {"input_ids": [1 << 30]},
        {"input_ids": [1], "sampling_params": {"temperature": -1}},
        {"input_ids": [1], "sampling_params": {"top_p": 0}},
        {"input_ids": [1], "sampling_params": {"max_new_tokens": -1}},
    ]
    for body in bodies:
        status = engine.http.post("/generate", json=body).status_code
        require(400 <= status < 500, f"{body} gives {status}")
    status = engine.http.post("/generate", content=b"{").status_code
    require(400 <= status < 500, f"broken JSON gives {status}")


CHECKS: list[Check] = [
    health,
    greedy_repeats,
    seed_repeats,
    greedy_continuation,
    seeded_continuation,
    logprobs_are_probabilities,
    logprobs_match_transformers,
    streaming_is_cumulative,
    abort_keeps_partial,
    pause_holds,
    first_token_before_others_end,
    stop_token_is_kept,
    prefix_is_reused,
    bad_requests_are_refused,
]


def run(engine: EngineUnderTest, checks: list[Check]) -> int:
    """Print one line per check and return how many failed."""
    failed = 0
    for check in checks:
        try:
            check(engine)
            print(f"ok    {check.__name__}", flush=True)
        except (AssertionError, httpx.HTTPError, GyreError, ValueError, LookupError, TypeError) as error:
            # From GyreError on: answers that the gateway, or the check itself, cannot read.
            failed += 1
            print(f"FAIL  {check.__name__}: {error!r}", flush=True)
    return failed
