"""Write everything that a demo run needs into one folder: tasks, a warmed-up model and a run file."""

import os
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path

from app.demo.recipe import NUM_HELDOUT, NUM_TRAIN, run_file, run_file_text
from app.demo.tasks import draw_split, write_split
from gyre.settings import RunFile, load_run_file


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options of ``gyre demo``, and the name of its run."""

    name: str
    seed: int
    updates: int
    control: str
    harness: str


def prepare(
    folder: Path, request: Request, *, progress: Callable[[int, int, float], None] | None = None
) -> RunFile:
    """Write ``tasks/``, ``model/`` and ``run.toml`` into ``folder``. The warm-up takes about a minute.

    ``progress`` is called with (warm-up steps done, all warm-up steps, loss).
    """
    split = draw_split(request.seed, num_train=NUM_TRAIN, num_heldout=NUM_HELDOUT)
    write_split(folder / "tasks" / "train", split.train)
    write_split(folder / "tasks" / "heldout", split.heldout)
    _make_model(folder / "model", request.seed, split.words, progress)
    document = run_file(
        name=request.name,
        seed=request.seed,
        updates=request.updates,
        control=request.control,
        harness=request.harness,
        model=Path("model"),
        tasks=Path("tasks"),
    )
    (folder / "run.toml").write_text(run_file_text(document))
    return load_run_file(folder / "run.toml")


def _make_model(
    folder: Path, seed: int, excluded: Set[str], progress: Callable[[int, int, float], None] | None
) -> None:
    # Imported here because torch takes three seconds to load, and a bad option is refused before that.
    import torch

    from app.demo.model import build_model, save_model
    from app.demo.tokenizer import build_tokenizer
    from app.demo.warmup import warm_up

    torch.set_num_threads(min(2, os.cpu_count() or 1))
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed)
    warm_up(model, tokenizer, seed=seed, excluded=excluded, progress=progress)
    save_model(model, tokenizer, folder)
