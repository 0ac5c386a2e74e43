"""Open a batch in one transaction: freeze rewards, extract trajectories, pack micro-steps."""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session
from temporalio import activity

from db import batches, groups, run_state
from db.batches import BatchNode, ScoredExecution
from db.models import BatchExecutionRow, BatchRow, MicroStepRow, TrajectoryRow
from db.session import Database, transaction
from gyre.contracts.ids import BatchId, RunId, batch_id
from gyre.contracts.messages import OpenBatchInput, OpenBatchResult
from gyre.durable.activities import OPEN_BATCH
from gyre.durable.failures import translated
from gyre.rules.groups import advantages
from gyre.settings import RunFile
from gyre.trajectory.extraction import ExtractionNode, Path, extract
from gyre.trajectory.layout import head, segments_to
from gyre.trajectory.packing import Item, Packed, pack


@dataclass(frozen=True)
class TrajectoryActivities:
    """Activities on ``<run>/short``."""

    database: Database

    @activity.defn(name=OPEN_BATCH.name)
    @translated
    def open_batch(self, input: OpenBatchInput) -> OpenBatchResult:
        """Open the batch whose update makes ``version``, unless it is open already."""
        name = batch_id(RunId(input.run), input.version)
        with transaction(self.database) as session:
            groups.lock_run(session, input.run)
            found = batches.existing(session, name)
            if found is not None:
                return OpenBatchResult(
                    batch_id=name, num_executions=found.num_executions, num_trajectories=0, num_targets=0
                )
            config = RunFile.model_validate(run_state.newest_config(session, input.run))
            return _open(session, name, input, config)


def _open(session: Session, name: BatchId, input: OpenBatchInput, config: RunFile) -> OpenBatchResult:
    ready = batches.claim_ready_groups(session, input.run, config.schedule.groups_per_batch)
    if not ready:
        return OpenBatchResult(batch_id=None, num_executions=0, num_trajectories=0, num_targets=0)
    scored = _frozen(batches.scored_of(session, ready), config, input.version)
    placeholders = batches.num_placeholders(session, ready) if config.loss.placeholder_in_baseline else {}
    trees = _trees(session, scored)
    paths = _paths(trees, config)
    trajectories = _trajectories(name, paths)
    executions = _executions(name, scored, paths, config, placeholders)
    packed = _packed(_items(trees, paths), executions, config)
    micro_steps = [
        MicroStepRow(
            batch_id=name,
            index=index,
            kind=step.kind,
            trajectory_ids=list(step.trajectory_ids),
            num_tokens=step.num_tokens,
            status="open",
        )
        for index, step in enumerate(packed)
    ]
    batch = BatchRow(id=name, run_id=input.run, version=input.version, num_executions=len(scored))
    batches.write(session, batch, ready, executions, trajectories, micro_steps)
    return OpenBatchResult(
        batch_id=name,
        num_executions=len(scored),
        num_trajectories=len(trajectories),
        num_targets=sum(t.num_targets for t in trajectories),
    )


def _frozen(scored: Sequence[ScoredExecution], config: RunFile, version: int) -> list[ScoredExecution]:
    """Return the rewards to train on: each execution's own, or shuffled ones as a control."""
    if config.run.control != "permuted":
        return list(scored)
    order = list(range(len(scored)))
    random.Random(f"{config.run.seed}:{version}").shuffle(order)
    return [
        ScoredExecution(own.execution_id, own.group_id, scored[other].reward_id, scored[other].reward)
        for own, other in zip(scored, order, strict=True)
    ]


def _trees(session: Session, scored: Sequence[ScoredExecution]) -> dict[str, list[ExtractionNode]]:
    """Return the nodes of each execution, in order of execution id."""
    rows = batches.nodes_of(session, [each.execution_id for each in scored])
    return {execution: [_node(row) for row in tree] for execution, tree in sorted(rows.items())}


def _paths(trees: Mapping[str, Sequence[ExtractionNode]], config: RunFile) -> dict[str, list[Path]]:
    return {
        execution: extract(
            nodes,
            max_paths=config.schedule.max_trajectories,
            seed=f"{config.run.seed}:{execution}",
        )
        for execution, nodes in trees.items()
    }


def _node(row: BatchNode) -> ExtractionNode:
    return ExtractionNode(
        id=row.id,
        parent_id=row.parent_id,
        parent_offset=row.parent_offset,
        position=row.position,
        num_tokens=row.num_tokens,
        trainable=row.sampled,
        role=row.role,
    )


def _trajectories(batch: BatchId, paths: Mapping[str, Sequence[Path]]) -> list[TrajectoryRow]:
    return [
        TrajectoryRow(
            id=_trajectory_id(execution, index),
            execution_id=execution,
            batch_id=batch,
            index=index,
            leaf_node_id=path.leaf_id,
            role=path.role,
            num_tokens=path.num_tokens,
            num_targets=path.num_targets,
            target_node_ids=list(path.target_ids),
        )
        for execution, found in paths.items()
        for index, path in enumerate(found)
    ]


def _items(
    trees: Mapping[str, Sequence[ExtractionNode]], paths: Mapping[str, Sequence[Path]]
) -> Iterator[Item]:
    for execution, found in paths.items():
        nodes = {node.id: node for node in trees[execution]}
        for index, path in enumerate(found):
            last = nodes[path.target_ids[-1]]
            computed = head(segments_to(path.leaf_id, nodes), last.position + last.num_tokens - 1)
            yield Item(_trajectory_id(execution, index), execution, computed)


def _packed(items: Iterable[Item], executions: Sequence[BatchExecutionRow], config: RunFile) -> list[Packed]:
    """Pack trajectories into micro-steps.

    Executions without a gradient get micro-steps of their own, which cost nothing to run; mixed with others,
    they would take up room.
    """
    trained, rest = list[Item](), list[Item]()
    advantage = {row.execution_id: row.advantage for row in executions}
    for item in items:
        (trained if config.loss.trains(advantage[item.execution_id]) else rest).append(item)
    clipped = {name for name, value in advantage.items() if config.loss.clips(value)}
    budget = config.optimizer.micro_step_tokens
    return [*pack(trained, budget=budget, scored=clipped), *pack(rest, budget=budget, scored=())]


def _trajectory_id(execution: str, index: int) -> str:
    return f"{execution}/trajectory/{index}"


def _executions(
    batch: BatchId,
    scored: Sequence[ScoredExecution],
    paths: Mapping[str, Sequence[Path]],
    config: RunFile,
    placeholders: Mapping[str, int],
) -> list[BatchExecutionRow]:
    by_group: dict[str, dict[str, float]] = defaultdict(dict)
    for each in scored:
        by_group[each.group_id][each.execution_id] = each.reward
    advantage: dict[str, float] = {}
    for group, rewards in by_group.items():
        advantage |= advantages(
            rewards,
            normalise_std=config.loss.normalise_std,
            num_placeholders=placeholders.get(group, 0),
        )
    return [
        BatchExecutionRow(
            batch_id=batch,
            execution_id=each.execution_id,
            reward_id=each.reward_id,
            advantage=advantage[each.execution_id],
            num_targets=sum(path.num_targets for path in paths.get(each.execution_id, [])),
        )
        for each in scored
    ]
