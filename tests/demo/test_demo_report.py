"""What the demo reads from Postgres."""

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import demo_report, queries
from db.demo_report import Rollouts
from db.models import Batch, BatchExecution, Execution, QueryGroup, Reward, Run, Task
from db.session import transaction
from gyre.contracts.lifecycle import Disposition, Purpose

RUNNING = 2.0
"""Stands for an execution that has not ended."""


def make_group(
    session: Session, index: int, rewards: list[float | None], *, purpose: Purpose, phase: str | None
) -> None:
    """A group whose executions ended scored, or excluded where the reward is None; the last one runs."""
    name = f"run/demo/group/{index}"
    session.add(
        QueryGroup(
            id=name, run_id="demo", index=index, task_id="run/demo/task/tamok", purpose=purpose, phase=phase,
            size=len(rewards) + 1, status="running", policy_version=0,
        )
    )  # fmt: skip
    session.flush()
    for position, reward in enumerate([*rewards, RUNNING]):
        execution = Execution(id=f"{name}/rollout/{position}", group_id=name, run_id="demo", index=position)
        session.add(execution)
        session.flush()
        if reward is RUNNING:
            execution.status = "running"
            continue
        end(session, execution, reward)


def end(session: Session, execution: Execution, reward: float | None) -> None:
    row = Reward(id=f"{execution.id}/reward", execution_id=execution.id, value=reward or 0.0)
    if reward is not None:
        session.add(row)
        session.flush()
    execution.status = "terminal"
    execution.disposition = Disposition.EXCLUDED if reward is None else Disposition.SCORED
    execution.reward_id = None if reward is None else row.id
    session.flush()


def fill(session: Session) -> None:
    session.add(Run(id="demo", secret=b"s", status="running"))
    session.flush()
    session.add(
        Task(id="run/demo/task/tamok", run_id="demo", name="tamok", split="heldout", path="x", sha256="0")
    )
    session.flush()
    make_group(session, 0, [0.25, None], purpose=Purpose.HELDOUT, phase="before")
    make_group(session, 1, [1.0], purpose=Purpose.GREEDY, phase="before")
    make_group(session, 2, [0.0, 1.0], purpose=Purpose.TRAIN, phase=None)
    make_group(session, 3, [0.5], purpose=Purpose.TRAIN, phase=None)
    add_batch(session, 2, "trained", [("run/demo/group/3/rollout/0", "run/demo/group/3/rollout/0")])
    # The permuted control: each trains on the other's reward.
    first, second = "run/demo/group/2/rollout/0", "run/demo/group/2/rollout/1"
    add_batch(session, 1, "trained", [(first, second), (second, first)])
    add_batch(session, 3, "open", [(first, first)])


def add_batch(session: Session, version: int, status: str, members: list[tuple[str, str]]) -> None:
    name = f"run/demo/batch/{version}"
    session.add(Batch(id=name, run_id="demo", version=version, status=status, num_executions=len(members)))
    session.flush()
    for execution, rewarded in members:
        session.add(
            BatchExecution(
                batch_id=name,
                execution_id=execution,
                reward_id=f"{rewarded}/reward",
                advantage=0.0,
                num_targets=1,
            )
        )
    session.flush()


def test_rewards_of_trained_batches_in_order(database: Engine) -> None:
    with transaction(database) as session:
        fill(session)
        assert queries.mean_rewards(session, "demo") == [0.5, 0.5]
        batch = session.get_one(Batch, "run/demo/batch/3")
        batch.status = "trained"
        session.flush()
        assert queries.mean_rewards(session, "demo") == [0.5, 0.5, 0.0]
        assert queries.mean_rewards(session, "demo", last=1) == [0.0]
        assert queries.mean_rewards(session, "other") == []


def test_rollouts_by_part(database: Engine) -> None:
    with transaction(database) as session:
        fill(session)
        assert demo_report.rollouts(session, "demo") == {
            "before": Rollouts(5, 3),
            "train": Rollouts(5, 3),
            "after": Rollouts(0, 0),
        }


def test_heldout_outcomes_keep_what_has_no_score(database: Engine) -> None:
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
