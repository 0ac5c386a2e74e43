"""A small finished run, consistent in every row: three versions, two trained batches, real weights in S3.

It holds the hard cases: a continued conversation, a branch inside a node, a call sampled by two policy
versions, and a greedy held-out group.
"""

from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from sqlalchemy.orm import Session

from db.models import (
    AttemptRow,
    BatchExecutionRow,
    BatchRow,
    CellRow,
    CellTransitionRow,
    CheckpointRow,
    ContributionRow,
    EvaluationRow,
    ExecutionRow,
    MicroStepRow,
    PolicyVersionRow,
    QueryGroupRow,
    RewardRow,
    RunConfigRow,
    RunRow,
    SnapshotRow,
    TaskRow,
    TrajectoryRow,
)
from db.object_store import BlobStore
from db.session import Database, transaction
from gyre.settings import RunFile
from tests.audit.small_tree import RUN, START, Tree, make_policies, sha256

NUM_OUTPUT = 64
PLAN = (
    # purpose, policy version, batch version, hour of dispatch, rewards (None: excluded, "-": placeholder)
    ("train", 0, 1, 0, (0.0, 0.5, 1.0, 1.0)),
    ("train", 1, 2, 4, (0.25, 0.75, 1.0, "-")),
    ("train", 2, None, 8, (0.5, 0.5, None)),
    ("train", 2, None, 8, (None,)),
    ("greedy", 2, None, 8, (1.0,)),
)
STATUS = ("trained", "trained", "ready", "dropped", "ready")


def hour(hours: float) -> datetime:
    return START + timedelta(hours=hours)


def build(database: Database, store: BlobStore, folder: Path) -> None:
    """Write the whole run. ``folder`` becomes the run's model directory."""
    policies = make_policies(folder)
    keys = [_store_weights(policy, folder / f"{v}.safetensors", store) for v, policy in enumerate(policies)]
    (folder / "workspace.tar.zst").write_bytes(b"a workspace")
    workspace = store.put_file(folder / "workspace.tar.zst")
    with transaction(database) as session:
        _add_run(session, folder)
        session.flush()
        _add_batches(session)
        _add_versions(session, policies, keys, folder)
        for index in range(len(PLAN)):
            _add_group(session, index, policies, workspace)
        _add_cell(session)


def _store_weights(policy: Any, path: Path, store: BlobStore) -> str:
    tensors = {n: t.contiguous() for n, t in policy.state_dict().items() if n != "lm_head.weight"}
    save_file(tensors, path)
    return store.put_file(path)


def _add_run(session: Session, folder: Path) -> None:
    config = {
        "run": {"name": RUN},
        "model": {"path": str(folder)},
        "tasks": {"train": str(folder)},
    }
    resolved = RunFile.model_validate(config).resolved()
    session.add(RunRow(id=RUN, status="finished", secret=b"secret"))
    session.flush()
    session.add(RunConfigRow(run_id=RUN, revision=1, resolved=resolved, fingerprint="x"))
    session.add(TaskRow(id=f"run/{RUN}/task/t", run_id=RUN, name="t", split="train", path="t", sha256="x"))


def _add_batches(session: Session) -> None:
    for version, size in ((1, 4), (2, 3)):
        session.add(
            BatchRow(
                id=f"run/{RUN}/batch/{version}",
                run_id=RUN,
                version=version,
                status="trained",
                num_executions=size,
            )
        )
    session.flush()


def _add_versions(session: Session, policies: list[Any], keys: list[str], folder: Path) -> None:
    for version, (policy, key) in enumerate(zip(policies, keys, strict=True)):
        tensors = {n: t for n, t in policy.state_dict().items() if n != "lm_head.weight"}
        payload = sha256(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors)))
        name = f"run/{RUN}/checkpoint/{version}"
        session.add(
            CheckpointRow(
                id=name,
                run_id=RUN,
                version=version,
                weights_key=key,
                sha256=payload,
                num_bytes=(folder / f"{version}.safetensors").stat().st_size,
            )
        )
        session.flush()
        batch = f"run/{RUN}/batch/{version}" if version else None
        session.add(
            PolicyVersionRow(run_id=RUN, version=version, sha256=payload, checkpoint_id=name, batch_id=batch)
        )
    session.flush()


def _add_group(session: Session, index: int, policies: list[Any], workspace: str) -> None:
    purpose, version, batch_version, start, rewards = PLAN[index]
    group = f"run/{RUN}/group/{index}"
    batch = f"run/{RUN}/batch/{batch_version}" if batch_version else None
    session.add(
        QueryGroupRow(
            id=group,
            run_id=RUN,
            index=index,
            task_id=f"run/{RUN}/task/t",
            purpose=purpose,
            size=len(rewards),
            status=STATUS[index],
            drop_reason="no execution was scored" if STATUS[index] == "dropped" else None,
            policy_version=version,
            batch_id=batch,
            dispatched_at=hour(start),
        )
    )
    session.flush()
    kept = [reward for reward in rewards if isinstance(reward, float)]
    for place, reward in enumerate(rewards):
        execution = f"{group}/rollout/{place}"
        _add_execution(session, execution, group, place, reward, start + 1)
        if reward == "-":
            continue
        tree = _add_tree(session, execution, version, policies, 0.0 if purpose == "greedy" else 1.3)
        if reward is None:
            continue
        _score_execution(session, execution, reward, workspace)
        if batch:
            advantage = (reward - np.mean(kept)) / np.std(kept)
            _train_execution(session, execution, batch, float(advantage), tree)
    if batch:
        _add_micro_steps(session, batch)


def _add_execution(
    session: Session, name: str, group: str, index: int, reward: float | str | None, end: float
) -> None:
    disposition = {None: "excluded", "-": "placeholder"}.get(reward, "excluded")
    session.add(
        ExecutionRow(
            id=name,
            group_id=group,
            run_id=RUN,
            index=index,
            status="terminal",
            disposition=disposition,
            terminal_at=hour(end),
        )
    )
    session.flush()


def _add_tree(
    session: Session, execution: str, version: int, policies: list[Any], temperature: float
) -> Tree:
    attempt = f"{execution}/attempt/1"
    session.add(
        AttemptRow(
            id=attempt,
            execution_id=execution,
            run_id=RUN,
            number=1,
            status="sealed",
            end_reason="exited",
            exit_code=0,
            host="h",
        )
    )
    session.flush()
    draw = np.random.default_rng(int(sha256(execution.encode())[:8], 16))
    tree = Tree(attempt, execution, policies, temperature, draw)
    # The second answer straddles a publication if there is a later version.
    spans = [[version, 40], [version + 1, NUM_OUTPUT - 40]] if version < 2 else [[version, NUM_OUTPUT]]
    first = tree.call(20, [[version, NUM_OUTPUT]], None, 0)
    tree.call(9, spans, first, first.num_tokens)
    root = tree.nodes[0]
    tree.call(7, [[version, NUM_OUTPUT]], root, 12)
    for call in tree.calls:
        context, sampled = call.context_node_id, call.sampled_node_id
        call.context_node_id = call.sampled_node_id = None
        session.add(call)
        session.flush()
        for node in tree.nodes:
            if node.call_id == call.id:
                session.add(node)
                session.flush()
        call.context_node_id, call.sampled_node_id = context, sampled
        session.flush()
    return tree


def _score_execution(session: Session, execution: str, value: float, workspace: str) -> None:
    attempt, evaluation = f"{execution}/attempt/1", f"{execution}/evaluation/1"
    session.add(
        SnapshotRow(
            id=f"{attempt}/snapshot",
            attempt_id=attempt,
            execution_id=execution,
            blob_key=workspace,
            num_files=1,
            num_bytes=1,
            manifest={},
        )
    )
    session.flush()
    session.add(
        EvaluationRow(
            id=evaluation,
            execution_id=execution,
            snapshot_id=f"{attempt}/snapshot",
            number=1,
            status="succeeded",
        )
    )
    session.flush()
    reward = f"{evaluation}/reward"
    session.add(RewardRow(id=reward, execution_id=execution, evaluation_id=evaluation, value=value))
    session.flush()
    row = session.get_one(ExecutionRow, execution)
    row.disposition, row.reward_id = "scored", reward
    session.flush()


def _train_execution(session: Session, execution: str, batch: str, advantage: float, tree: Tree) -> None:
    first, second, third = (call.sampled_node_id for call in tree.calls)
    paths = [[first, second], [third]]
    session.add(
        BatchExecutionRow(
            batch_id=batch,
            execution_id=execution,
            reward_id=f"{execution}/evaluation/1/reward",
            advantage=advantage,
            num_targets=3 * NUM_OUTPUT,
        )
    )
    for index, targets in enumerate(paths):
        session.add(
            TrajectoryRow(
                id=f"{execution}/trajectory/{index}",
                execution_id=execution,
                batch_id=batch,
                index=index,
                leaf_node_id=targets[-1],
                role="main",
                num_tokens=len(tree.paths[targets[-1] or ""]),
                num_targets=NUM_OUTPUT * len(targets),
                target_node_ids=targets,
            )
        )
    session.flush()


def _add_micro_steps(session: Session, batch: str) -> None:
    names = [t.id for t in session.query(TrajectoryRow).filter_by(batch_id=batch).order_by(TrajectoryRow.id)]
    middle = len(names) // 2
    for index, part in enumerate((names[:2], names[:middle], names[middle:])):
        kind = "score" if index == 0 else "grad"
        session.add(
            MicroStepRow(
                batch_id=batch, index=index, kind=kind, trajectory_ids=part, num_tokens=1, status="done"
            )
        )
    session.flush()


def _add_cell(session: Session) -> None:
    cell = f"run/{RUN}/cell/0"
    session.add(CellRow(id=cell, run_id=RUN, index=0, capacity=4, epoch=1))
    session.flush()
    roles = ("rollout", "draining", "loading", "training", "returning", "rollout")
    for version, start in ((1, 2.0), (2, 6.0)):
        for step, (before, after) in enumerate(pairwise(roles)):
            session.add(
                CellTransitionRow(
                    cell_id=cell,
                    command_id=f"{version}/{step}",
                    epoch=1,
                    from_role=before,
                    to_role=after,
                    at=hour(start + step / 10),
                )
            )
            session.flush()
        session.add(
            ContributionRow(
                id=f"run/{RUN}/batch/{version}/contribution/0",
                batch_id=f"run/{RUN}/batch/{version}",
                cell_id=cell,
                core_epoch=1,
                cell_epoch=version,
                micro_steps=[1, 2],
                sha256="x",
                status="accepted",
            )
        )
