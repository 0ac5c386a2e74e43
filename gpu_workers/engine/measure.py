"""``python -m gpu_workers.engine.measure MODEL_DIR``: measure decode speed without HTTP.

Prints one JSON line per batch size: milliseconds per step, tokens per second and prefill tokens per second.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from gpu_workers.engine.architecture import Architecture
from gpu_workers.engine.build import read_model
from gpu_workers.engine.kv import RunningCache
from gpu_workers.engine.qwen3 import Model
from gpu_workers.engine.sampling import Draw, sample
from gyre.contracts.engine import SamplingParams


def measure(model: Model, shape: Architecture, *, batch: int, prompt: int, steps: int) -> dict[str, float]:
    """Prefill ``batch`` prompts, then decode and sample ``steps`` tokens for each."""
    dtype, device = model.weights.embed.dtype, model.weights.embed.device
    cache = RunningCache(shape, max_rows=batch, max_tokens=prompt + steps, dtype=dtype, device=device)
    cache.reserve([0] * batch, prompt + steps)
    ids = torch.randint(0, shape.vocab_size, (batch, prompt)).tolist()
    started = time.perf_counter()
    for row in range(batch):
        model.prefill(cache.row(row), ids[row], 0)
    prefill_s = time.perf_counter() - started
    params = SamplingParams(temperature=1.0, sampling_seed=1)
    tokens, durations = [row[-1] for row in ids], list[float]()
    for step in range(steps):
        started = time.perf_counter()
        positions = [prompt + step] * batch
        logits = model.decode(cache.data, range(batch), tokens, positions)
        tokens, _ = sample(logits, [Draw(params, p + 1) for p in positions])
        durations.append(time.perf_counter() - started)
    step_ms = statistics.median(durations) * 1e3
    return {
        "batch": batch,
        "step_ms": round(step_ms, 3),
        "tokens_per_s": round(batch / step_ms * 1e3),
        "prefill_tokens_per_s": round(batch * prompt / prefill_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="decode speed of the embedded engine")
    parser.add_argument("model_path", type=Path)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 32])
    parser.add_argument("--prompt", type=int, default=150, help="tokens per prompt")
    parser.add_argument("--steps", type=int, default=150, help="tokens decoded per prompt")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = read_model(
        given.model_path, context_tokens=given.prompt + given.steps, dtype=given.dtype, device=given.device
    )
    for batch in given.batch:
        figures = measure(model, model.shape, batch=batch, prompt=given.prompt, steps=given.steps)
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
