"""A batch's micro-steps on rank 0: claim them, spread them over the replicas, mark them done."""

import math
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session

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

ClaimedStep = tuple[MicroStepRow, list[TargetPath]]


@dataclass
class BatchWork:
    """The results that this process holds of a batch, by micro-step, so that each is counted exactly once."""

    batch: BatchId
    executions: dict[str, BatchExecutionRow]
    scored: dict[int, StepResult] = field(default_factory=dict)
    """Results of score micro-steps, by index."""
    accumulated: dict[int, StepResult] = field(default_factory=dict)
    """Results of grad micro-steps, by index."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by stage."""

    @contextmanager
    def timed(self, stage: str) -> Generator[None]:
        """Record the wall time of the block as ``seconds[stage]``."""
        started = time.monotonic()
        yield
        self.seconds[stage] = time.monotonic() - started

    def scored_sums(self) -> Sums:
        """Return the sums of each scored execution over all its pieces.

        They are added in micro-step order, so the result does not depend on which replica computed what.
        """
        return _added(self.scored[index].sums for index in sorted(self.scored))

    def metrics(self, section: LossSection, num_executions: int) -> dict[str, Any]:
        """Build the update's report.

        Averages are over the targets of every execution that may have a gradient, clipped or not, however it
        was cut. ``num_tokens`` were computed for the gradient; with nothing shared it would have been
        ``num_path_tokens``.
        """
        steps = self.scored | self.accumulated
        totals = sum((steps[i].totals for i in sorted(steps)), Totals())
        results = [self.accumulated[i] for i in sorted(self.accumulated)]
        sums = _added(result.sums for result in results) | self.scored_sums()
        ratios = [math.exp(total / count) for total, count in sums.values()]
        advantage = {
            name: self.executions[name].advantage for name in sums if self.executions[name].advantage
        }
        kept = {name for result in results for name in result.kept}
        targets = max(totals.num_targets, 1)
        return {
            "num_executions": num_executions,
            "num_with_advantage": len(advantage),
            "num_kept": len(kept),
            "num_tokens": sum(result.num_tokens for result in results),
            "num_path_tokens": sum(result.num_path_tokens for result in results),
            "num_targets": totals.num_targets,
            "loss": sum(r.value for r in self.accumulated.values()) / max(num_executions, 1),
            "clip_fraction": 1 - len(kept) / len(advantage) if advantage else 0.0,
            "cap_fraction": totals.num_capped / targets,
            "mean_ratio": totals.ratio / targets,
            "s_min": min(ratios, default=1.0),
            "s_max": max(ratios, default=1.0),
            "kl_k3": totals.k3 / targets,
            "entropy": totals.entropy / targets,
            "skipped": not (sums if section.regularised else kept),
        }


class BatchRunner:
    """Claims micro-steps for one incarnation of a cell and runs them on all replicas at once."""

    def __init__(
        self, database: Database, ranks: Ranks, replica: Replica, claimant: Claimant, config: RunFile
    ) -> None:
        self._database, self._ranks, self._replica = database, ranks, replica
        self._claimant, self._config = claimant, config

    def run(self, batch: BatchId) -> BatchWork:
        """Score, then accumulate; when this returns, the replicas hold the gradient sum.

        Micro-steps of an earlier incarnation or an earlier try are done again: their sums are gone with the
        memory that held them. Raises TrainerFailed if another cell holds some.
        """
        with transaction(self._database) as session:
            training.reopen_claims(session, batch, self._claimant)
            work = BatchWork(batch, training.executions_of(session, batch))
        self._ranks.call(self._replica, "begin")
        # All scores come first: whether an execution in pieces is kept depends on all of its pieces.
        for kind in (MicroStepKind.SCORE, MicroStepKind.GRAD):
            with work.timed(kind.value):
                while claimed := self._claim(work, kind):
                    results = self._compute(work, kind, [paths for _, paths in claimed])
                    self._finish(work, kind, claimed, results)
        with transaction(self._database) as session:
            steps = training.micro_steps_of(session, batch)
        missing = [s.index for s in steps if s.index not in work.accumulated and s.index not in work.scored]
        if missing:
            raise TrainerFailed(f"{batch}: micro-steps {missing} are held by another cell")
        return work

    def _claim(self, work: BatchWork, kind: MicroStepKind) -> list[ClaimedStep]:
        """Claim one micro-step per replica, as far as there are open ones, and read its paths."""
        claimed: list[ClaimedStep] = []
        with transaction(self._database) as session:
            while len(claimed) < self._ranks.data_parallel:
                step = training.claim_micro_step(session, work.batch, kind, self._claimant)
                if step is None:
                    break
                claimed.append((step, load_paths(session, step, work.executions, self._config.loss)))
        return claimed

    def _compute(
        self, work: BatchWork, kind: MicroStepKind, paths: list[list[TargetPath]]
    ) -> list[StepResult]:
        """Run one micro-step on each replica; replicas without one take part with no paths."""
        temperature, section = self._config.sampling.temperature, self._config.loss
        idle: list[list[TargetPath]] = [[] for _ in range(self._ranks.data_parallel - len(paths))]
        if kind == MicroStepKind.SCORE:
            arguments: list[tuple[Any, ...]] = [(part, section, temperature) for part in paths + idle]
            return self._ranks.spread(self._replica, "score", arguments)
        known = work.scored_sums()
        parts = [needing_gradient(part, known, section) for part in paths + idle]
        arguments = [(part, known, section, temperature) for part in parts]
        return self._ranks.spread(self._replica, "accumulate", arguments)

    def _finish(
        self,
        work: BatchWork,
        kind: MicroStepKind,
        claimed: Sequence[ClaimedStep],
        results: Sequence[StepResult],
    ) -> None:
        """Mark the claimed micro-steps done, then keep their results."""
        with transaction(self._database) as session:
            for step, _ in claimed:
                training.finish_micro_step(session, work.batch, step.index, self._claimant)
        done = work.scored if kind == MicroStepKind.SCORE else work.accumulated
        # There is a result per replica: those of replicas without a micro-step come last and are dropped.
        for (step, _), result in zip(claimed, results, strict=False):
            done[step.index] = result


def load_paths(
    session: Session, step: MicroStepRow, executions: dict[str, BatchExecutionRow], section: LossSection
) -> list[TargetPath]:
    """Read the micro-step's paths that can have a gradient."""
    rows = [row for row in training.trajectories_of(session, step.trajectory_ids) if row.num_targets > 0]
    rows = [row for row in rows if section.trains(executions[row.execution_id].advantage)]
    nodes = training.paths_to(session, [row.leaf_node_id for row in rows])
    return [assemble(row, nodes, executions[row.execution_id]) for row in rows]


def needing_gradient(paths: Sequence[TargetPath], known: Sums, section: LossSection) -> list[TargetPath]:
    """Drop paths of executions that scoring already clipped, unless other terms of the loss need them.

    Raises TrainerFailed for an execution that may be clipped, has only some of its paths here, and was not
    scored as a whole.
    """
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


def _added(parts: Iterable[Sums]) -> Sums:
    whole: Sums = {}
    for part in parts:
        for name, (total, count) in part.items():
            before = whole.get(name, (0.0, 0))
            whole[name] = (before[0] + total, before[1] + count)
    return whole
