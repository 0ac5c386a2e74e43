"""`gyre bench`: the path works and the keys are there; the claims are measured, not tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    "flat_peak_bytes", "tree_peak_bytes",
}  # fmt: skip


def bench(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a home directory of its own, where LiteLLM is not installed."""
    command = [sys.executable, "-m", "gyre", "bench", *arguments]
    environment = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)


def test_gateway_quick(tmp_path: Path) -> None:
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


def test_tree_quick(tmp_path: Path) -> None:
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
    assert row["flat_flops"]["output"] == row["tree_flops"]["output"]


def test_an_unknown_benchmark_is_bad_usage(tmp_path: Path) -> None:
    result = bench(tmp_path, "nothing")
    assert (result.returncode, result.stdout) == (2, "")
    assert "no benchmark 'nothing'" in result.stderr
