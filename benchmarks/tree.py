"""Training on trees compared with training on their separate paths: time, work and memory.

Both sides compute the same gradient with the same Megatron model and the same loss, forward and backward, at
one token budget per micro-step. Tree is the product. Flat trains every path from its root, packed by the same
rule, with ``scaled_dot_product_attention(is_causal=True)`` on each path, unpadded. The sides alternate in one
process. A side's time is the least of the repeats, because other load on the machine can only add to it. CPU
seconds are reported too; on a busy machine they say more.

The work ratio is the exact number of floating point operations of flat divided by those of the tree. Only
matrix products count: three per linear layer and output layer (forward and two gradients), and seven for
attention (two forward, five backward, since the fused kernels recompute the scores) for each pair of a query
and a key that it sees.

Peak memory is the growth of a fresh process's resident size during the fullest micro-step. The sides fill the
budget unequally, and a tree's row has all the targets, so the tokens and targets of the measured rows are
reported as well.
"""

import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table
from transformers import Qwen3Config

with warnings.catch_warnings():
    # Megatron warns about optional packages that only serve GPUs.
    warnings.simplefilter("ignore")
    from benchmarks.tree_flat import SegmentAttention
    from gpu_workers.trainer.data import TargetPath
    from gpu_workers.trainer.ranks import Ranks
    from gpu_workers.trainer.replica import Replica

from benchmarks.bars import bars
from benchmarks.tree_paths import Growth, grow, sample
from gyre.settings.runfile import LossSection, OptimizerSection
from gyre.trajectory.layout import Layout, lay_out
from gyre.trajectory.packing import Item, pack

THREADS, REPEATS, BUDGET = 2, 3, 16_384
SEED = 1
SECTION = LossSection(form="truncated")
"""A loss without clipping, so that neither side skips a backward pass."""
MODEL = Qwen3Config(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=16_384,
    tie_word_embeddings=True,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
)
SHAPE = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "head_dim", "vocab_size",
)  # fmt: skip
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """``num_executions`` trees of one kind, which together fit the token budget."""

    path_tokens: int
    num_executions: int
    growth: Growth


# At one end compaction and a sub-agent branch early, at the other many late turns are retried.
CASES = (
    Case(2048, 4, Growth(3, (0.25, 0.75), (0.6, 1.0))),
    Case(2048, 4, Growth(9, (0.85, 1.0), (0.9, 1.0))),
    Case(2048, 3, Growth(22, (0.96, 1.0), (0.94, 1.0))),
    Case(8192, 1, Growth(3, (0.4, 0.8), (0.6, 1.0))),
    Case(8192, 1, Growth(9, (0.85, 1.0), (0.85, 1.0))),
    Case(8192, 1, Growth(18, (0.95, 1.0), (0.92, 1.0))),
)
QUICK_CASES = (Case(512, 1, Growth(3, (0.6, 0.9))),)


@dataclass(frozen=True)
class Work:
    """Floating point operations of forward and backward together."""

    linear: float
    output: float
    attention: float

    @property
    def total(self) -> float:
        """Add up the parts."""
        return self.linear + self.output + self.attention


def measure(say: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Measure all cases, or with ``quick`` one small tree once."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    Ranks(0, 1, "", 1, CPU)
    load = psutil.getloadavg()[0]
    tree, flat = new_replica(flat=False), new_replica(flat=True)
    rows = list[dict[str, Any]]()
    for case in QUICK_CASES if quick else CASES:
        rows.append(_row(case, tree, flat, 1 if quick else REPEATS))
        say(
            "{path_tokens} tokens per path: work ratio {work_ratio}, gain {gain}, cpu {cpu_gain}".format(
                **rows[-1]
            )
        )
    torch.distributed.destroy_process_group()
    torch.set_num_threads(threads)
    return {
        "rows": rows,
        "bars": bars(rows),
        "model": {name: getattr(MODEL, name) for name in SHAPE} | {"dtype": "float32"},
        "threads": THREADS,
        "repeats": 1 if quick else REPEATS,
        "seconds_are": "the least of the repeats",
        "peak_bytes_are": "growth of the resident size of a fresh process over the fullest micro-step",
        "load_before": round(load, 2),
    }


def show(console: Console, document: dict[str, Any]) -> None:
    """Print the document as a table."""
    table = Table(
        "tokens per path", "work ratio", "flat s", "tree s", "gain", "of the ratio", "flat MB", "tree MB"
    )
    for row in document["rows"]:
        table.add_row(
            str(row["path_tokens"]),
            *(f"{row[key]:.2f}" for key in ("work_ratio", "flat_s", "tree_s", "gain", "fraction_of_ratio")),
            *(f"{row[key] / 1e6:.0f}" for key in ("flat_peak_bytes", "tree_peak_bytes")),
        )
    console.print(table)


def new_replica(*, flat: bool) -> Replica:
    """Make a replica with random weights that are the same on both sides."""
    made = Replica(MODEL, "float32", OptimizerSection(), CPU)
    rng = torch.Generator().manual_seed(SEED)
    for name, parameter in sorted(made.policy.gpt.named_parameters()):
        parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.02, generator=rng)
    if flat:
        for layer in made.policy.gpt.decoder.layers:
            layer.self_attention.core_attention = SegmentAttention(made.policy.gpt.config)
    return made


def _row(case: Case, tree: Replica, flat: Replica, repeats: int) -> dict[str, Any]:
    """Measure both sides of a case."""
    paths = paths_of(case)
    sides = {"flat": (flat, micro_steps(separate(paths))), "tree": (tree, micro_steps(paths))}
    times: dict[str, list[float]] = {"flat": [], "tree": []}
    processor: dict[str, list[float]] = {"flat": [], "tree": []}
    for _ in range(repeats):
        for name, (replica, steps) in sides.items():
            before = process_time()
            times[name].append(_seconds(replica, steps))
            processor[name].append(process_time() - before)
    assert len(sides["tree"][1]) == 1, "the trees of a case fit the budget together"
    layouts = {n: [lay_out([p.segments for p in step]) for step in steps] for n, (_, steps) in sides.items()}
    num_targets = sum(len(path.targets) for path in paths)
    work = {name: work_of(found, num_targets) for name, found in layouts.items()}
    gain = min(times["flat"]) / min(times["tree"])
    ratio = work["flat"].total / work["tree"].total
    row: dict[str, Any] = {
        "work_ratio": round(ratio, 3),
        "path_tokens": case.path_tokens,
        "gain": round(gain, 3),
        "fraction_of_ratio": round(gain / ratio, 3),
        "cpu_gain": round(min(processor["flat"]) / min(processor["tree"]), 3),
        "token_budget": BUDGET,
        "num_executions": case.num_executions,
        "num_paths": len(paths),
        "num_targets": num_targets,
    }
    for name in sides:
        row |= {
            f"{name}_s": round(min(times[name]), 4),
            f"{name}_seconds": [round(each, 4) for each in times[name]],
            f"{name}_cpu_seconds": [round(each, 4) for each in processor[name]],
            **{f"{name}_peak_{what}": n for what, n in peak_of(case, flat=name == "flat").items()},
            f"{name}_tokens": sum(layout.num_tokens for layout in layouts[name]),
            f"{name}_micro_steps": len(layouts[name]),
            f"{name}_flops": asdict(work[name]),
        }
    return row


def paths_of(case: Case) -> list[TargetPath]:
    """Make a case's paths, the same at every call."""
    rng = np.random.default_rng(SEED)
    return [
        path
        for number in range(case.num_executions)
        for path in sample(rng, grow(rng, case.path_tokens, case.growth), f"e{number}", MODEL.vocab_size)
    ]


def separate(paths: Sequence[TargetPath]) -> list[TargetPath]:
    """Share nothing, and make each path a separate execution, so that it is packed wherever it fits."""
    return [
        replace(path, execution_id=f"{i:04}", segments=[(f"{i}", len(path.tokens) - 1)])
        for i, path in enumerate(paths)
    ]


def micro_steps(paths: Sequence[TargetPath]) -> list[list[TargetPath]]:
    """Pack paths as the product does when nothing is clipped."""
    items = [Item(f"{i:04}", path.execution_id, path.segments) for i, path in enumerate(paths)]
    steps = pack(items, budget=BUDGET, scored=())
    return [[paths[int(name)] for name in step.trajectory_ids] for step in steps]


def work_of(layouts: Sequence[Layout], num_targets: int) -> Work:
    """Count two operations per multiply-add; the module docstring has the numbers of products."""
    heads = MODEL.num_attention_heads * MODEL.head_dim
    groups = MODEL.num_key_value_heads * MODEL.head_dim
    weights = MODEL.hidden_size * (2 * heads + 2 * groups + 3 * MODEL.intermediate_size)
    tokens = sum(layout.num_tokens for layout in layouts)
    pairs = sum(
        sum((stop - start) * (stop - start + 1) // 2 for start, stop in layout.chains)
        + sum((b.stop - b.start) * (b.last - b.first) for b in layout.blocks)
        for layout in layouts
    )
    layers = MODEL.num_hidden_layers
    return Work(
        linear=2 * 3 * layers * weights * tokens,
        output=2 * 3 * MODEL.hidden_size * MODEL.vocab_size * num_targets,
        attention=2 * 7 * layers * heads * pairs,
    )


def _seconds(replica: Replica, steps: Sequence[Sequence[TargetPath]]) -> float:
    replica.begin()
    started = perf_counter()
    for step in steps:
        replica.accumulate(step, {}, SECTION, 1.0)
    return perf_counter() - started


def peak_of(case: Case, *, flat: bool) -> dict[str, int]:
    """Measure ``bytes``, ``tokens`` and ``targets`` of one side's fullest micro-step in a new process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_peak, args=(sender, case, flat))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


def _measure_peak(sender: Connection, case: Case, flat: bool) -> None:
    torch.set_num_threads(THREADS)
    Ranks(0, 1, "", 1, CPU)
    replica, paths = new_replica(flat=flat), paths_of(case)
    steps = micro_steps(separate(paths) if flat else paths)
    _seconds(replica, [separate(paths_of(QUICK_CASES[0]))])  # allocates everything that stays
    counts = [lay_out([path.segments for path in step]).num_tokens for step in steps]
    tokens, fullest = max(zip(counts, steps, strict=True), key=lambda pair: pair[0])
    before = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    _seconds(replica, [fullest])
    _, _, peak = Path("/proc/self/status").read_text().partition("VmHWM:")
    targets = sum(len(path.targets) for path in fullest)
    sender.send({"bytes": int(peak.split()[0]) * 1024 - before, "tokens": tokens, "targets": targets})
