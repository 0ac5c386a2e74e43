"""`gyre bench` runs and prints its keys; the claims themselves are measured, not tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bars import bars

pytestmark = pytest.mark.timeout(600)
LIMIT_S = 500
"""Time limit of a benchmark, below the test's own so that a failure names the command that hung."""
KEYS = {
    "rate",
    "added_p50_ms",
    "added_p99_ms",
    "max_calls_per_s",
    "litellm_max_calls_per_s",
    "litellm_config",
    "cpu_ms_by_stage",
    "tokens_encoded_per_call",
    "tokenizer",
    "body_bytes",
}
TREE_KEYS = {
    "work_ratio", "path_tokens", "flat_s", "tree_s", "gain", "fraction_of_ratio", "token_budget",
    "flat_peak_bytes", "tree_peak_bytes", "flat_peak_tokens", "tree_peak_tokens", "flat_peak_targets",
    "tree_peak_targets",
}  # fmt: skip


def bench(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark in a separate home directory, where LiteLLM is not installed."""
    command = [sys.executable, "-m", "app", "bench", *arguments]
    environment = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


def test_a_quick_gateway_benchmark_prints_its_keys(tmp_path: Path) -> None:
    result = bench(tmp_path, "gateway", "--quick", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert set(document) >= KEYS
    assert document["litellm_max_calls_per_s"] is None
    assert set(document["cpu_ms_by_stage"]) >= {"parse", "match and render", "encode", "begin", "commit"}
    first, *later = document["tokens_encoded_per_call"]
    assert first["encoded"] == first["prompt"] > 10_000
    for row in later:
        assert row["encoded"] == pytest.approx(row["new"], rel=0.25)


def test_a_quick_tree_benchmark_prints_its_keys_and_judges_its_bars(tmp_path: Path) -> None:
    result = bench(tmp_path, "tree", "--quick", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["threads"], document["repeats"]) == (2, 1)
    (row,) = document["rows"]
    assert set(row) >= TREE_KEYS
    assert row["work_ratio"] > 1
    assert row["tree_tokens"] < row["flat_tokens"]
    for side in ("flat", "tree"):
        assert min(row[f"{side}_s"], row[f"{side}_peak_bytes"]) > 0
        assert set(row[f"{side}_flops"]) == {"linear", "output", "attention"}
        assert 0 < row[f"{side}_peak_targets"] < row[f"{side}_peak_tokens"] <= row[f"{side}_tokens"]
    assert row["flat_flops"]["output"] == row["tree_flops"]["output"]
    assert row["tree_micro_steps"] == 1
    for name, bar in document["bars"].items():
        assert set(bar) == {"bar", "seen", "met"}, name
        at_most = "peak" in name
        assert bar["met"] == (bar["seen"] <= bar["bar"] if at_most else bar["seen"] >= bar["bar"])


def test_the_bars_of_a_tree_depend_on_its_work_ratio() -> None:
    row = {"path_tokens": 2048, "gain": 1.01, "flat_peak_bytes": 10, "tree_peak_bytes": 11}
    small = bars([{**row, "work_ratio": 1.3, "fraction_of_ratio": 0.8}])
    assert {name: bar["met"] for name, bar in small.items()} == {
        "2048 tokens, ratio 1.3: gain": True, "2048 tokens, ratio 1.3: peak bytes": False,
    }  # fmt: skip
    large = bars([{**row, "work_ratio": 4.0, "fraction_of_ratio": 0.8}])
    assert large["2048 tokens, ratio 4.0: fraction of the ratio"] == {"bar": 0.85, "seen": 0.8, "met": False}


def test_an_unknown_benchmark_is_bad_usage(tmp_path: Path) -> None:
    result = bench(tmp_path, "nothing")
    assert (result.returncode, result.stdout) == (2, "")
    assert "no benchmark 'nothing'" in result.stderr
