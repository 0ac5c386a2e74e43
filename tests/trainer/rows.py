"""Database rows of a run with batches: trees, trajectories, micro-steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sqlalchemy import func
from sqlalchemy.orm import Session

from db.models import (
    AttemptRow,
    BatchExecutionRow,
    BatchRow,
    CellRow,
    ExecutionRow,
    MicroStepRow,
    ModelCallRow,
    QueryGroupRow,
    RewardRow,
    RunConfigRow,
    RunRow,
    TaskRow,
    TrajectoryRow,
    TreeNodeRow,
)
from db.session import Database, transaction
from db.training import Claimant
from gyre.contracts.ids import RunId, attempt_id, batch_id, cell_id, execution_id, group_id, node_id
from gyre.settings import RunFile

RUN = RunId("r")
CLAIMANT = Claimant(cell_id(RUN, 0), 1)
BATCH = batch_id(RUN, 1)


@dataclass(frozen=True)
class Turns:
    """An execution of alternating context and sampled nodes; each trajectory ends a branch."""

    advantage: float
    lengths: Sequence[tuple[int, int]] = ((6, 4), (3, 5))
    """(context, sampled) tokens per trajectory; all share the first trajectory's first 2 tokens."""
    seed: int = 0


def run_config(model_dir: Path, **sections: dict[str, object]) -> RunFile:
    return RunFile.model_validate(
        {"run": {"name": RUN}, "model": {"path": model_dir}, "tasks": {"train": "/tasks"}, **sections}
    )


def add_run(database: Database, config: RunFile) -> None:
    """Insert a run with one cell at epoch 1."""
    with transaction(database) as session:
        session.add(RunRow(id=RUN, status="running", secret=b"k"))
        session.flush()
        session.add(RunConfigRow(run_id=RUN, revision=0, resolved=config.resolved(), fingerprint="f"))
        session.add(TaskRow(id="t", run_id=RUN, name="a", split="train", path="p", sha256="s"))
        session.add(CellRow(id=CLAIMANT.cell, run_id=RUN, index=0, role="training", epoch=1, capacity=1))


def add_batch(
    database: Database,
    executions: Sequence[Turns],
    steps: Sequence[tuple[str, Sequence[tuple[int, int]]]],
    *,
    version: int = 1,
) -> None:
    """Insert a batch of one group; ``steps`` are (kind, [(execution, trajectory), ...])."""
    batch, group = batch_id(RUN, version), group_id(RUN, version)
    with transaction(database) as session:
        session.add(BatchRow(id=batch, run_id=RUN, version=version, num_executions=len(executions)))
        session.flush()
        session.add(
            QueryGroupRow(
                id=group,
                run_id=RUN,
                index=version,
                task_id="t",
                size=max(len(executions), 2),
                status="assigned",
                policy_version=0,
                batch_id=batch,
                ready_at=func.now(),
            )
        )
        session.flush()
        for index, turns in enumerate(executions):
            _add_execution(session, version, index, turns)
        for index, (kind, members) in enumerate(steps):
            names = [f"{execution_id(group, e)}/trajectory/{t}" for e, t in members]
            session.add(
                MicroStepRow(batch_id=batch, index=index, kind=kind, trajectory_ids=names, num_tokens=0)
            )


def _add_execution(session: Session, version: int, index: int, turns: Turns) -> None:
    name = execution_id(group_id(RUN, version), index)
    attempt, reward = attempt_id(name, 0), f"{name}/reward"
    session.add(ExecutionRow(id=name, group_id=group_id(RUN, version), run_id=RUN, index=index))
    session.flush()
    session.add(AttemptRow(id=attempt, execution_id=name, run_id=RUN, number=0, status="sealed", host="h"))
    session.add(RewardRow(id=reward, execution_id=name, value=0.5))
    session.flush()
    execution = session.get_one(ExecutionRow, name)
    execution.status, execution.disposition, execution.reward_id = "terminal", "scored", reward
    call = f"{attempt}/call/0"
    session.add(
        ModelCallRow(
            id=call,
            attempt_id=attempt,
            execution_id=name,
            run_id=RUN,
            index=0,
            dialect="openai",
            request_key="k",
            requested={},
            sampling={},
        )
    )
    session.flush()
    rng = np.random.default_rng(1000 * version + 10 * index + turns.seed)
    for branch, (context, sampled) in enumerate(turns.lengths):
        _add_branch(session, version, index, branch, context, sampled, rng)
    session.flush()
    session.add(
        BatchExecutionRow(
            batch_id=batch_id(RUN, version),
            execution_id=name,
            reward_id=reward,
            advantage=turns.advantage,
            num_targets=sum(sampled for _, sampled in turns.lengths),
        )
    )


def _add_branch(
    session: Session,
    version: int,
    index: int,
    branch: int,
    context: int,
    sampled: int,
    rng: np.random.Generator,
) -> None:
    """Insert a context and a sampled node; every branch but the first leaves the root after 2 tokens."""
    name = execution_id(group_id(RUN, version), index)
    attempt = attempt_id(name, 0)
    root = node_id(attempt, 0) if branch else None
    shared = 2 if branch else 0
    nodes = [
        ("context", root, shared, shared, context),
        ("sampled", node_id(attempt, 2 * branch), context, shared + context, sampled),
    ]
    for number, (kind, parent, offset, position, length) in enumerate(nodes):
        logprobs = rng.uniform(-4.5, -3.5, length).astype("<f4").tobytes() if kind == "sampled" else None
        session.add(
            TreeNodeRow(
                id=node_id(attempt, 2 * branch + number),
                attempt_id=attempt,
                index=2 * branch + number,
                call_id=f"{attempt}/call/0",
                parent_id=parent,
                parent_offset=offset,
                position=position,
                kind=kind,
                num_tokens=length,
                token_ids=rng.integers(0, 61, length).astype("<i4").tobytes(),
                logprobs=logprobs,
            )
        )
        session.flush()
    leaf = node_id(attempt, 2 * branch + 1)
    session.add(_trajectory(version, name, branch, leaf, shared + context + sampled, sampled))


def _trajectory(
    version: int, execution: str, index: int, leaf: str, num_tokens: int, num_targets: int
) -> TrajectoryRow:
    """Make the trajectory to a leaf, the only node of which the tokens are targets."""
    return TrajectoryRow(
        id=f"{execution}/trajectory/{index}",
        execution_id=execution,
        batch_id=batch_id(RUN, version),
        index=index,
        leaf_node_id=leaf,
        role="main",
        num_tokens=num_tokens,
        num_targets=num_targets,
        target_node_ids=[leaf],
    )
