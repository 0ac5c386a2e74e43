"""An execution has the same gradient however it is cut into micro-steps, in float64 to 1e-9."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from db.models import BatchExecutionRow
from gpu_workers.trainer.batch import BatchWork, needing_gradient
from gpu_workers.trainer.data import TargetPath
from gpu_workers.trainer.replica import Replica, Sums
from gyre.contracts.errors import TrainerFailed
from gyre.settings.runfile import LossSection, OptimizerSection
from tests.trainer.models import paths_of, random_nodes, random_path, tiny_config
from tests.trainer.rows import BATCH

CAPPED = LossSection()


def execution(
    replica: Replica, mean_log_ratio: float, advantage: float, num_paths: int = 5, name: str = "e"
) -> list[TargetPath]:
    """Make paths of a tree with uneven log ratios of which the mean makes s_i = exp(mean_log_ratio)."""
    rng = np.random.default_rng(4)
    made = paths_of(random_nodes(rng, 4 * num_paths), rng, name, advantage)[:num_paths]
    assert len(made) == num_paths
    total = sum(len(path.targets) for path in made)
    rng, paths = np.random.default_rng(0), list[TargetPath]()
    shifts = rng.uniform(-0.5, 0.5, total)
    shifts += mean_log_ratio - shifts.mean()
    for path in made:
        logprobs = replica.forward(replica.pack([path]), 1.0).logprobs.detach()
        shift, shifts = shifts[: len(path.targets)], shifts[len(path.targets) :]
        behaviour = (logprobs.numpy() - shift).astype(np.float32)
        paths.append(replace(path, behaviour=behaviour, num_execution_targets=total))
    return paths


@pytest.fixture
def other(model_dir: Path) -> Replica:
    """Make a second replica with the same weights."""
    made = Replica(tiny_config(tied=True), "float64", OptimizerSection(), torch.device("cpu"))
    made.load(str(model_dir / "model.safetensors"), None)
    return made


def gradients(
    replicas: list[Replica], pieces: list[list[TargetPath]], section: LossSection = CAPPED
) -> dict[str, torch.Tensor]:
    """Score if there are several pieces, then accumulate, with pieces dealt to the replicas in turn.

    Returns the gradient summed over the replicas.
    """
    known: Sums = {}
    if len(pieces) > 1 and section.clips(pieces[0][0].advantage):
        for index, piece in enumerate(pieces):
            scored = replicas[index % len(replicas)].score(piece, section, 1.0)
            for name, (total, count) in scored.sums.items():
                before = known.get(name, (0.0, 0))
                known[name] = (before[0] + total, before[1] + count)
    for replica in replicas:
        replica.begin()
    for index, piece in enumerate(pieces):
        part = needing_gradient(piece, known, section)
        replicas[index % len(replicas)].accumulate(part, known, section, 1.0)
    found = [replica.gradients() or {} for replica in replicas]
    return {name: torch.stack([part[name] for part in found]).sum(0) for name in found[0]}


@pytest.mark.parametrize("advantage", [1.3, -0.7])
@pytest.mark.parametrize("mean_log_ratio", [-0.02, -0.004, 0.004, 0.02])
@pytest.mark.parametrize("form", ["capped", "truncated"])
def test_one_two_and_five_pieces_give_one_gradient(
    replica: Replica, other: Replica, mean_log_ratio: float, advantage: float, form: str
) -> None:
    section = LossSection(form=form)
    paths = execution(replica, mean_log_ratio, advantage)
    whole = gradients([replica], [paths], section)
    clipped = (advantage > 0 and mean_log_ratio > 0.005) or (advantage < 0 and mean_log_ratio < -0.0051)
    nothing = all(not tensor.any() for tensor in whole.values())
    assert nothing == (clipped and form == "capped")
    for pieces in ([paths[:2], paths[2:]], [[path] for path in paths]):
        cut = gradients([replica, other], pieces, section)
        assert max((cut[name] - whole[name]).abs().max() for name in whole) < 1e-9


@pytest.mark.parametrize("side", [-1, 1])
def test_rank_0_replica_and_report_agree_on_what_is_kept(replica: Replica, side: int) -> None:
    """Within 1e-9 of a clip bound, all three decide from the same sums."""
    path = random_path(0)
    total = len(path.targets) * math.log(CAPPED.clip_high) * (1 + side * 1e-9)
    known = {"e": (total, len(path.targets))}
    result = replica.accumulate([path], known, CAPPED, 1.0)
    moved = any(tensor.any() for tensor in (replica.gradients() or {}).values())
    assert moved == (result.kept == ("e",)) == bool(needing_gradient([path], known, CAPPED)) == (side < 0)
    row = BatchExecutionRow(execution_id="e", advantage=1.0, num_targets=len(path.targets))
    work = BatchWork(BATCH, {"e": row}, accumulated={0: result})
    metrics = work.metrics(CAPPED, 1)
    assert (metrics["skipped"], metrics["num_kept"]) == (not moved, int(moved))


def test_statistics_do_not_depend_on_how_executions_are_cut(replica: Replica) -> None:
    """One execution is clipped, one is kept."""
    paths = [
        *execution(replica, 0.02, 1.0, name="clipped"),
        *execution(replica, 0.0, 1.0, name="kept"),
    ]
    rows = {name: BatchExecutionRow(execution_id=name, advantage=1.0) for name in ("clipped", "kept")}
    whole = BatchWork(BATCH, rows, accumulated={0: replica.accumulate(paths, {}, CAPPED, 1.0)})
    pieces = [[path] for path in paths]
    cut = BatchWork(BATCH, rows, {i: replica.score(piece, CAPPED, 1.0) for i, piece in enumerate(pieces)})
    known = cut.scored_sums()
    for index, piece in enumerate(pieces, len(pieces)):
        part = needing_gradient(piece, known, CAPPED)
        cut.accumulated[index] = replica.accumulate(part, known, CAPPED, 1.0)
    one, other = (work.metrics(CAPPED, 2) for work in (whole, cut))
    for name in ("num_tokens", "num_path_tokens"):  # tokens that pieces share are computed in each piece
        del one[name], other[name]
    assert one == pytest.approx(other, rel=1e-9)


def test_a_piece_alone_is_refused_without_the_others_scores(replica: Replica) -> None:
    paths = execution(replica, 0.0, 1.0)
    with pytest.raises(TrainerFailed, match=f"of which {len(paths[0].targets)} were scored"):
        needing_gradient(paths[:1], {}, CAPPED)
    assert needing_gradient(paths[:1], {}, LossSection(form="truncated")) == paths[:1]
    scored = replica.score(paths[:2], CAPPED, 1.0).sums
    with pytest.raises(TrainerFailed, match="were scored"):
        needing_gradient(paths[:1], scored, CAPPED)


def test_a_gradient_that_is_not_finite_updates_nothing(replica: Replica) -> None:
    before = {name: tensor.clone() for name, tensor in (replica.export() or {}).items()}
    replica.accumulate([random_path(0, advantage=float("nan"))], {}, LossSection(form="truncated"), 1.0)
    with pytest.raises(TrainerFailed, match="norm is nan"):
        replica.close(1, 1.0)
    after = replica.export() or {}
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_gradient_is_that_of_the_definition(replica: Replica) -> None:
    """torch differentiates sum_i 1/|T_i| sum_t -A w log pi itself, one path at a time."""
    first = execution(replica, 0.001, 1.0, num_paths=2)
    second = [replace(random_path(9, execution="f", advantage=-0.5, length=14), num_execution_targets=7)]
    second[0].behaviour[:] = -4.0
    section = LossSection(form="truncated")
    found = gradients([replica], [first + second], section)
    replica.begin()
    for path in first + second:
        packed = replica.pack([path])
        logprobs = replica.forward(packed, 1.0).logprobs
        weights = (logprobs.detach() - packed.behaviour).exp().clamp(max=5.0)
        (-(path.advantage * weights * logprobs).sum() / path.num_execution_targets).backward()
    expected = replica.gradients() or {}
    assert max((found[name] - expected[name]).abs().max() for name in expected) < 1e-12
