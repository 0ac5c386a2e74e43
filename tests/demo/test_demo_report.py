"""Queries behind the demo's screen and report."""

from sqlalchemy.orm import Session

from db import demo_report, queries
from db.demo_report import Rollouts, Trained
from db.models import (
    AttemptRow,
    BatchExecutionRow,
    BatchRow,
    ExecutionRow,
    ModelCallRow,
    QueryGroupRow,
    RewardRow,
    RunRow,
    TaskRow,
    TrajectoryRow,
    TreeNodeRow,
)
from db.session import Database, transaction
from gyre.contracts.lifecycle import Disposition, Purpose

RUNNING = 2.0
"""Reward that stands for an execution that has not ended."""


def make_group(
    session: Session, index: int, rewards: list[float | None], *, purpose: Purpose, phase: str | None
) -> None:
    """Add a group whose executions ended scored, or excluded where the reward is None, and one that runs."""
    name = f"run/demo/group/{index}"
    session.add(
        QueryGroupRow(
            id=name, run_id="demo", index=index, task_id="run/demo/task/tamok", purpose=purpose, phase=phase,
            size=len(rewards) + 1, status="running", policy_version=0,
        )
    )  # fmt: skip
    session.flush()
    for position, reward in enumerate([*rewards, RUNNING]):
        execution = ExecutionRow(
            id=f"{name}/rollout/{position}", group_id=name, run_id="demo", index=position
        )
        session.add(execution)
        session.flush()
        if reward is RUNNING:
            execution.status = "running"
            continue
        end(session, execution, reward)


def end(session: Session, execution: ExecutionRow, reward: float | None) -> None:
    row = RewardRow(id=f"{execution.id}/reward", execution_id=execution.id, value=reward or 0.0)
    if reward is not None:
        session.add(row)
        session.flush()
    execution.status = "terminal"
    execution.disposition = Disposition.EXCLUDED if reward is None else Disposition.SCORED
    execution.reward_id = None if reward is None else row.id
    session.flush()


def fill(session: Session) -> None:
    session.add(RunRow(id="demo", secret=b"s", status="running"))
    session.flush()
    session.add(
        TaskRow(id="run/demo/task/tamok", run_id="demo", name="tamok", split="heldout", path="x", sha256="0")
    )
    session.flush()
    make_group(session, 0, [0.25, None], purpose=Purpose.HELDOUT, phase="before")
    make_group(session, 1, [1.0], purpose=Purpose.GREEDY, phase="before")
    make_group(session, 2, [0.0, 1.0], purpose=Purpose.TRAIN, phase=None)
    make_group(session, 3, [0.5], purpose=Purpose.TRAIN, phase=None)
    add_batch(session, 2, "trained", [("run/demo/group/3/rollout/0", "run/demo/group/3/rollout/0")])
    # As in the permuted control, each trains on the other's reward.
    first, second = "run/demo/group/2/rollout/0", "run/demo/group/2/rollout/1"
    add_batch(session, 1, "trained", [(first, second), (second, first)])
    add_batch(session, 3, "open", [(first, first)])


def add_batch(session: Session, version: int, status: str, members: list[tuple[str, str]]) -> None:
    name = f"run/demo/batch/{version}"
    session.add(BatchRow(id=name, run_id="demo", version=version, status=status, num_executions=len(members)))
    session.flush()
    for execution, rewarded in members:
        session.add(
            BatchExecutionRow(
                batch_id=name,
                execution_id=execution,
                reward_id=f"{rewarded}/reward",
                advantage=0.0,
                num_targets=1,
            )
        )
    session.flush()


def test_mean_rewards_are_those_of_trained_batches_in_order(database: Database) -> None:
    with transaction(database) as session:
        fill(session)
        assert queries.mean_rewards(session, "demo") == [0.5, 0.5]
        batch = session.get_one(BatchRow, "run/demo/batch/3")
        batch.status = "trained"
        session.flush()
        assert queries.mean_rewards(session, "demo") == [0.5, 0.5, 0.0]
        assert queries.mean_rewards(session, "demo", last=1) == [0.0]
        assert queries.mean_rewards(session, "other") == []


def test_rollouts_are_counted_per_part(database: Database) -> None:
    with transaction(database) as session:
        fill(session)
        assert demo_report.rollouts(session, "demo") == {
            "before": Rollouts(5, 3),
            "train": Rollouts(5, 3),
            "after": Rollouts(0, 0),
        }


def test_heldout_outcomes_include_rollouts_without_a_score(database: Database) -> None:
    with transaction(database) as session:
        fill(session)
        found = demo_report.heldout_outcomes(session, "demo")
    assert [(each.purpose, each.disposition, each.reward) for each in found] == [
        (Purpose.HELDOUT, Disposition.SCORED, 0.25),
        (Purpose.HELDOUT, Disposition.EXCLUDED, None),
        (Purpose.HELDOUT, None, None),
        (Purpose.GREEDY, Disposition.SCORED, 1.0),
        (Purpose.GREEDY, None, None),
    ]
    assert {(each.task, each.phase) for each in found} == {("tamok", "before")}


def sampled_node(session: Session, execution: str, index: int, role: str, tokens: int) -> str:
    """Add a call of this role; return the node that it sampled."""
    attempt = f"{execution}/attempt/1"
    if session.get(AttemptRow, attempt) is None:
        values = {"id": attempt, "execution_id": execution, "run_id": "demo", "number": 1, "host": "h"}
        session.add(AttemptRow(**values, status="open"))
        session.flush()
    call, node = f"{attempt}/call/{index}", f"{attempt}/node/{index}"
    session.add(
        ModelCallRow(
            id=call, attempt_id=attempt, execution_id=execution, run_id="demo", index=index, dialect="openai",
            role=role, request_key="-", requested={}, sampling={},
        )
    )  # fmt: skip
    session.flush()
    session.add(
        TreeNodeRow(
            id=node, attempt_id=attempt, index=index, call_id=call, parent_offset=0, position=0,
            kind="sampled", num_tokens=tokens, token_ids=b"\0" * 4 * tokens, logprobs=b"\0" * 4 * tokens,
        )
    )  # fmt: skip
    session.flush()
    return node


def add_path(session: Session, batch: int, execution: str, index: int, targets: list[str]) -> None:
    session.add(
        TrajectoryRow(
            id=f"{execution}/trajectory/{index}", execution_id=execution, batch_id=f"run/demo/batch/{batch}",
            index=index, leaf_node_id=targets[-1], role="main", num_tokens=9, num_targets=9,
            target_node_ids=targets,
        )
    )  # fmt: skip
    session.flush()


def test_targets_are_counted_by_the_role_of_their_call(database: Database) -> None:
    with transaction(database) as session:
        fill(session)
        first, second = "run/demo/group/2/rollout/0", "run/demo/group/2/rollout/1"
        roles = ["main", "main_summary", "main", "subagent"]
        nodes = [sampled_node(session, first, i, role, i + 1) for i, role in enumerate(roles)]
        add_path(session, 1, first, 0, nodes[:2])  # compacted: one path holds both roles
        add_path(session, 1, first, 1, nodes[2:3])
        add_path(session, 1, first, 2, nodes[3:])
        add_path(session, 1, second, 0, [sampled_node(session, second, 0, "main", 7)])
        open_batch = [sampled_node(session, "run/demo/group/3/rollout/0", 0, "subagent", 50)]
        add_path(session, 3, "run/demo/group/3/rollout/0", 0, open_batch)
        assert demo_report.trained_roles(session, "demo") == {
            "main": Trained(rollouts=2, paths=3, targets=1 + 3 + 7),
            "main_summary": Trained(rollouts=1, paths=1, targets=2),
            "subagent": Trained(rollouts=1, paths=1, targets=4),
        }
        assert demo_report.trained_roles(session, "other") == {}
