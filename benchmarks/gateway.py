"""The latency that the gateway adds to a model call, and its throughput compared with the LiteLLM proxy.

The load is Claude Code's requests (78 KB, growing over 20 turns, streamed). The gateway commits to the disk
through Postgres, and its engine answers at once.

Latency is measured with random arrivals (open loop) at 60 calls per second, which is what 1,152 concurrent
executions make. Added latency is a call's latency through the gateway, less the median when the same
generator sends the same requests directly to the instant backend.

Throughput is measured with a closed loop. The best of several numbers of calls under way and of one and two
processes counts, for gateway and proxy alike, with the same generator, requests, backend and cores.
"""

import asyncio
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from sqlalchemy import text

from benchmarks import gateway_litellm as litellm
from benchmarks.gateway_conversation import NUM_TURNS, HarnessConversation, conversations, source_text
from benchmarks.gateway_load import Load, Measured
from benchmarks.gateway_process import cpu_s_by_stage
from benchmarks.gateway_stack import GROUP_SIZE, VOCABULARY, Stack, cpu_s, running
from db.session import transaction

RATE = 60.0
CONCURRENT, QUICK_CONCURRENT = 1_152, 20
OPEN_S, QUICK_OPEN_S = 40.0, 3.0
DIRECT_S = 10.0
CLOSED_S, QUICK_CLOSED_S = 20.0, 2.0
UNDER_WAY = (16, 48, 128)
PROCESSES = (1, 2)
"""Gateway processes, and LiteLLM workers, that two cores can run."""
SAMPLED = 20
"""Conversations whose number of encoded tokens is compared with their new text."""


def measure(say: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Measure everything in one run. ``quick`` takes seconds, and skips LiteLLM unless it is installed.

    Gateway and proxy take turns, because a machine's speed changes from minute to minute.
    """
    if not quick:
        litellm.install(say)
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as folder, running(Path(folder)) as stack:
        direct_ms = asyncio.run(_direct(stack, quick))
        say(f"no gateway: p50 {direct_ms} ms")
        found, others = list[dict[str, Any]](), list[dict[str, Any]]()
        for count in PROCESSES[-1:] if quick else PROCESSES:
            say(f"gateway, {count} processes: warm-up")
            with stack.serving(count) as processes:
                found.append(asyncio.run(_gateway(stack, processes, direct_ms, say, quick)))
            if litellm.installed():
                others.append(_litellm(stack, count, say, quick))
    document = _best(found) | _best_litellm(others)
    return document | {"bars": _bars(document)}


def _best(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the measurement with the best number of processes, with a summary of each number."""
    best = max(found, key=lambda one: one["max_calls_per_s"])
    compared = ("processes", "added_p50_ms", "added_p99_ms", "max_calls_per_s")
    return best | {"by_processes": [{key: one[key] for key in compared} for one in found]}


def _bars(document: dict[str, Any]) -> dict[str, Any]:
    """Compare claims and measurements, with LiteLLM at its best and with as many workers as processes."""
    one, best = document["by_processes"][0], document["max_calls_per_s"]
    other = {each["workers"]: each["max_calls_per_s"] for each in document["litellm_by_workers"]}
    bars = {
        "added_p50_ms": {"at_most": 10, "seen": document["added_p50_ms"]},
        "added_p99_ms": {"at_most": 50, "seen": document["added_p99_ms"]},
    }
    if other:
        bars["times_litellm"] = {"at_least": 5, "seen": round(best / max(other.values()), 2)}
    if alike := other.get(one["processes"]):
        name = f"times_litellm_with_{one['processes']}_each"
        bars[name] = {"at_least": 5, "seen": round(one["max_calls_per_s"] / alike, 2)}
    return bars


def show(console: Console, document: dict[str, Any]) -> None:
    """Print the document for people."""
    console.print(
        f"at {document['rate']:.0f} calls/s the gateway adds {document['added_p50_ms']} ms (p50), "
        f"{document['added_p99_ms']} ms (p99), commit included"
    )
    console.print(
        f"it carries {document['max_calls_per_s']} calls/s; LiteLLM {document['litellm_max_calls_per_s']}"
    )
    for stage, spent in document["cpu_ms_by_stage"].items():
        console.print(f"  {stage:<24} {spent:8.3f} ms CPU per call")
    for row in document["tokens_encoded_per_call"]:
        console.print(
            "  turn {turn:>2}: prompt {prompt:>7.0f}  new {new:>7.0f}  encoded {encoded:>7.0f}".format(**row)
        )


async def _gateway(
    stack: Stack,
    processes: list[psutil.Process],
    direct_ms: float,
    say: Callable[[str], None],
    quick: bool,
) -> dict[str, Any]:
    known: list[HarnessConversation] = []

    def source() -> Any:
        for conversation in conversations(source_text(), stack.attempts(), GROUP_SIZE):
            if len(known) < SAMPLED:
                known.append(conversation)
            yield conversation

    load = Load(stack.port_of, source(), QUICK_CONCURRENT if quick else CONCURRENT, ())
    await load.stagger(UNDER_WAY[0])
    say(f"gateway: {RATE:.0f} calls/s for {QUICK_OPEN_S if quick else OPEN_S:.0f} s")
    before = _spent(stack, processes)
    steady = await load.open(RATE, QUICK_OPEN_S if quick else OPEN_S)
    cpu = _per_call(before, _spent(stack, processes), len(steady.latencies_ms))
    say(f"gateway: p50 {steady.percentile(0.5)} ms, p99 {steady.percentile(0.99)} ms")
    best = await _most(load, say, "gateway", quick)
    load.close()
    if steady.num_failed:
        raise RuntimeError(f"the gateway failed {steady.num_failed} calls: {steady.first_failure}")
    return {
        "processes": len(processes),
        "rate": RATE,
        "calls": len(steady.latencies_ms),
        "direct_p50_ms": direct_ms,
        **_latencies(steady, direct_ms),
        "generator_late_p99_ms": steady.percentile(0.99, steady.late_ms),
        "concurrent_conversations": QUICK_CONCURRENT if quick else CONCURRENT,
        "turns": NUM_TURNS,
        "group_size": GROUP_SIZE,
        "body_bytes": _spread(steady.body_bytes),
        "tokenizer": {"kind": "byte-level BPE, Qwen's word split", "vocabulary": VOCABULARY}
        | {"characters_per_token": _characters_per_token(stack)},
        "max_calls_per_s": round(best.rate, 1),
        "max_calls_p50_ms": best.percentile(0.5),
        "cpu_ms_by_stage": cpu,
        "tokens_encoded_per_call": _encoded(stack, known),
    }


def _latencies(steady: Measured, direct_ms: float) -> dict[str, float]:
    """Return percentiles, counted from when a request was written and from when it was due."""
    return {
        f"{name}_p{percent}_ms": round(steady.percentile(percent / 100, taken) - less, 2)
        for percent in (50, 90, 99)
        for name, taken, less in (
            ("added", steady.latencies_ms, direct_ms),
            ("whole", steady.latencies_ms, 0.0),
            ("whole_due", steady.due_ms, 0.0),
        )
    }


async def _direct(stack: Stack, quick: bool) -> float:
    """Return the median in milliseconds at the same rate, with nothing between generator and backend."""
    load = Load(lambda _: stack.backend_port, _anonymous(), QUICK_CONCURRENT if quick else CONCURRENT, ())
    await load.stagger(UNDER_WAY[0])
    steady = await load.open(RATE, QUICK_OPEN_S if quick else DIRECT_S)
    load.close()
    return steady.percentile(0.5)


def _anonymous() -> Iterator[HarnessConversation]:
    """Yield conversations of no attempt, for servers that do not check whose they are."""
    return conversations(source_text(), (f"sk-{number}" for number in itertools.count()), GROUP_SIZE)


async def _most(load: Load, say: Callable[[str], None], name: str, quick: bool) -> Measured:
    """Return the best closed loop. Raises RuntimeError if more than one call in a hundred fails."""
    seconds, results = QUICK_CLOSED_S if quick else CLOSED_S, list[Measured]()
    for workers in UNDER_WAY[:1] if quick else UNDER_WAY:
        results.append(result := await load.closed(workers, seconds))
        if result.num_failed > len(result.latencies_ms) // 100:
            raise RuntimeError(f"{name} failed {result.num_failed} calls: {result.first_failure}")
        say(f"{name}: {results[-1].rate:.1f} calls/s with {workers} calls under way")
    return max(results, key=lambda measured: measured.rate)


def _litellm(stack: Stack, workers: int, say: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Measure the proxy's throughput with this many workers, under the gateway's load."""
    with litellm.proxy(stack, workers) as served:
        rate = asyncio.run(_carried(stack, served.port, say, f"LiteLLM, {workers} workers", quick)).rate
    return {"workers": workers, "max_calls_per_s": round(rate, 1), "config": served.config}


def _best_litellm(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the measurement with the best number of workers."""
    best = max(found, key=lambda one: one["max_calls_per_s"], default=None)
    return {
        "litellm_max_calls_per_s": best and best["max_calls_per_s"],
        "litellm_config": best["config"] if best else "not measured: not installed, and --quick",
        "litellm_by_workers": [{key: one[key] for key in ("workers", "max_calls_per_s")} for one in found],
    }


async def _carried(stack: Stack, port: int, say: Callable[[str], None], name: str, quick: bool) -> Measured:
    """Run the closed loops against the proxy.

    It keeps nothing of a conversation, so the conversations may begin without it, faster.
    """
    concurrent = QUICK_CONCURRENT if quick else CONCURRENT
    headers = [f"authorization: Bearer {litellm.MASTER_KEY}"]
    load = Load(lambda _: stack.backend_port, _anonymous(), concurrent, headers)
    await load.stagger(UNDER_WAY[0])
    load.go_to(lambda _: port)
    result = await _most(load, say, name, quick)
    load.close()
    return result


def _spent(stack: Stack, gateways: list[psutil.Process]) -> dict[str, float]:
    """Return the CPU seconds so far, per stage of the gateways and per process."""
    stages = Counter[str]()
    for boot_file in stack.boot_files:
        stages.update(cpu_s_by_stage(boot_file))
    processes = {"gateway": gateways, "postgres": [stack.postgres], "engine": [stack.backend]}
    spent = {f"{name} process": sum(map(cpu_s, members)) for name, members in processes.items()}
    return dict(stages) | spent | {"generator process": cpu_s(psutil.Process()) - sum(spent.values())}


def _per_call(before: dict[str, float], after: dict[str, float], num_calls: int) -> dict[str, float]:
    spent = {name: 1000 * (after[name] - before.get(name, 0)) / num_calls for name in after}
    stages = sum(ms for name, ms in spent.items() if not name.endswith("process"))
    rest = {"rest of the gateway": spent["gateway process"] - stages}
    return {name: round(ms, 3) for name, ms in (spent | rest).items()}


def _encoded(stack: Stack, known: list[HarnessConversation]) -> list[dict[str, float]]:
    """Return the mean number of tokens per turn: of the prompt, of its new text, and encoded."""
    query = text(
        "SELECT c.index, avg(c.num_input_tokens), avg(c.num_input_tokens - c.num_reused_tokens) "
        "FROM model_call c WHERE c.status = 'committed' AND c.attempt_id = ANY(:attempts) "
        "GROUP BY c.index ORDER BY c.index"
    )
    with transaction(stack.database) as session:
        rows = session.execute(query, {"attempts": [stack.attempt_of(c.token) for c in known]}).all()
    new = [[_num_tokens(stack, piece) for piece in c.new_texts] for c in known]
    return [
        {"turn": turn, "prompt": float(prompt), "encoded": float(encoded), "new": _mean_at(new, turn)}
        for turn, prompt, encoded in rows
        if any(len(each) > turn for each in new)
    ]


def _mean_at(counts: list[list[int]], turn: int) -> float:
    found = [each[turn] for each in counts if len(each) > turn]
    return sum(found) / len(found)


def _num_tokens(stack: Stack, piece: str) -> int:
    return len(stack.tokenizer.encode(piece, add_special_tokens=False))


def _characters_per_token(stack: Stack) -> float:
    sample = source_text()[:200_000]
    return round(len(sample) / _num_tokens(stack, sample), 2)


def _spread(values: list[int]) -> dict[str, int]:
    ordered = sorted(values)
    return {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]}
