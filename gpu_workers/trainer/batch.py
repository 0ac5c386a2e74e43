"""Running a batch's micro-steps on rank 0: claim, assemble, spread over the replicas, finish."""

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from db import training
from db.models import BatchExecutionRow, MicroStepRow
from db.session import Database, transaction
from db.training import Claimant
from gpu_workers.trainer.data import TargetPath, assemble
from gpu_workers.trainer.loss import Totals, keeps
from gpu_workers.trainer.ranks import Ranks
from gpu_workers.trainer.replica import Replica, StepResult, Sums
from gyre.contracts.errors import TrainerFailed
from gyre.contracts.ids import BatchId
from gyre.contracts.lifecycle import MicroStepKind
from gyre.settings.runfile import LossSection, RunFile


@dataclass
class BatchWork:
    """What this process holds of a batch: results by micro-step, so that a batch is covered exactly once."""

    batch: BatchId
    executions: dict[str, BatchExecutionRow]
    scored: dict[int, StepResult] = field(default_factory=dict)
    """By score micro-step."""
    results: dict[int, StepResult] = field(default_factory=dict)
    """By grad micro-step."""
    seconds: dict[str, float] = field(default_factory=dict)

    def whole_sums(self) -> Sums:
        """Sums over the pieces of each scored execution, added in micro-step order whoever did them."""
        return _added(self.scored[index].sums for index in sorted(self.scored))

    def execution_sums(self) -> Sums:
        """Sums of every execution that entered the gradient or was clipped out of it."""
        return _added(self.results[index].sums for index in sorted(self.results)) | self.whole_sums()


class BatchRunner:
    """Claims micro-steps for one life of a cell and runs them on all replicas at once."""

    def __init__(
        self, database: Database, ranks: Ranks, replica: Replica, claimant: Claimant, config: RunFile
    ) -> None:
        self._database, self._ranks, self._replica = database, ranks, replica
        self._claimant, self._config = claimant, config

    def run(self, batch: BatchId) -> BatchWork:
        """Score, then accumulate. The gradient sum is in the replicas when this returns.

        What an earlier life or an earlier try of this cell had done is done again: its sums are gone.
        """
        with transaction(self._database) as session:
            training.reopen_claims(session, batch, self._claimant)
            work = BatchWork(batch, training.executions_of(session, batch))
        self._ranks.call(self._replica, "begin")
        for kind in (MicroStepKind.SCORE, MicroStepKind.GRAD):
            started = time.monotonic()
            while self._round(work, kind):
                pass
            work.seconds[kind.value] = time.monotonic() - started
        self._check_covered(work)
        return work

    def _round(self, work: BatchWork, kind: MicroStepKind) -> bool:
        """One micro-step for each replica; False when none was open."""
        claimed: list[tuple[MicroStepRow, list[TargetPath]]] = []
        with transaction(self._database) as session:
            while len(claimed) < self._ranks.data_parallel:
                step = training.claim_micro_step(session, work.batch, kind, self._claimant)
                if step is None:
                    break
                claimed.append((step, load_paths(session, step, work.executions, self._config.loss)))
        if not claimed:
            return False
        results = self._compute(work, kind, [paths for _, paths in claimed])
        with transaction(self._database) as session:
            for step, _ in claimed:
                training.finish_micro_step(session, work.batch, step.index, self._claimant)
        for (step, _), result in zip(claimed, results, strict=False):
            (work.scored if kind == MicroStepKind.SCORE else work.results)[step.index] = result
        return True

    def _compute(
        self, work: BatchWork, kind: MicroStepKind, paths: list[list[TargetPath]]
    ) -> list[StepResult]:
        temperature, section = self._config.sampling.temperature, self._config.loss
        idle: list[list[TargetPath]] = [[] for _ in range(self._ranks.data_parallel - len(paths))]
        if kind == MicroStepKind.SCORE:
            arguments: list[tuple[Any, ...]] = [(part, section, temperature) for part in paths + idle]
            return self._ranks.spread(self._replica, "score", arguments)
        known = work.whole_sums()
        parts = [needing_gradient(part, known, section) for part in paths + idle]
        arguments = [(part, known, section, temperature) for part in parts]
        return self._ranks.spread(self._replica, "accumulate", arguments)

    def _check_covered(self, work: BatchWork) -> None:
        with transaction(self._database) as session:
            steps = training.micro_steps_of(session, work.batch)
        missing = [s.index for s in steps if s.index not in work.results and s.index not in work.scored]
        if missing:
            raise TrainerFailed(f"{work.batch}: micro-steps {missing} are held by another cell")


def load_paths(
    session: Any, step: MicroStepRow, executions: dict[str, BatchExecutionRow], section: LossSection
) -> list[TargetPath]:
    """The micro-step's paths that can have a gradient."""
    rows = [row for row in training.trajectories_of(session, step.trajectory_ids) if row.num_targets > 0]
    rows = [row for row in rows if section.trains(executions[row.execution_id].advantage)]
    nodes = training.paths_to(session, [row.leaf_node_id for row in rows])
    return [assemble(row, nodes, executions[row.execution_id]) for row in rows]


def needing_gradient(paths: Sequence[TargetPath], known: Sums, section: LossSection) -> list[TargetPath]:
    """Drop what scoring already clipped, unless other terms of the loss need it. Raises TrainerFailed for an
    execution that may be clipped, is here in part only and was not scored as a whole."""
    here: dict[str, int] = defaultdict(int)
    for path in paths:
        here[path.execution_id] += len(path.targets)
    for path in [each for each in paths if section.clips(each.advantage)]:
        seen = known.get(path.execution_id, (0.0, here[path.execution_id]))[1]
        if seen != path.num_execution_targets:
            raise TrainerFailed(
                f"{path.execution_id} has {path.num_execution_targets} targets, of which {seen} were scored"
            )
    if section.regularised:
        return list(paths)
    return [
        p for p in paths if p.execution_id not in known or keeps(p.advantage, known[p.execution_id], section)
    ]


def metrics_of(work: BatchWork, section: LossSection, num_executions: int) -> dict[str, Any]:
    """What the update reports about its batch. Averages are over the targets of all executions that may have
    a gradient, clipped or not and however they were cut. ``num_tokens`` were computed for the gradient,
    ``num_path_tokens`` would have been with nothing shared."""
    steps = work.scored | work.results
    totals = sum((steps[i].totals for i in sorted(steps)), Totals())
    sums = work.execution_sums()
    ratios = [math.exp(total / count) for total, count in sums.values()]
    advantage = {name: work.executions[name].advantage for name in sums if work.executions[name].advantage}
    kept = {name for result in work.results.values() for name in result.kept}
    targets = max(totals.num_targets, 1)
    return {
        "num_executions": num_executions,
        "num_with_advantage": len(advantage),
        "num_kept": len(kept),
        "num_tokens": sum(result.num_tokens for result in work.results.values()),
        "num_path_tokens": sum(result.num_path_tokens for result in work.results.values()),
        "num_targets": totals.num_targets,
        "loss": sum(r.value for r in work.results.values()) / max(num_executions, 1),
        "clip_fraction": 1 - len(kept) / len(advantage) if advantage else 0.0,
        "cap_fraction": totals.num_capped / targets,
        "mean_ratio": totals.ratio / targets,
        "s_min": min(ratios, default=1.0),
        "s_max": max(ratios, default=1.0),
        "kl_k3": totals.k3 / targets,
        "entropy": totals.entropy / targets,
        "skipped": not (sums if section.regularised else kept),
    }


def _added(parts: Any) -> Sums:
    whole: Sums = {}
    for part in parts:
        for name, (total, count) in part.items():
            before = whole.get(name, (0.0, 0))
            whole[name] = (before[0] + total, before[1] + count)
    return whole
