"""The executions, trajectories, targets and advantages of an opened batch."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
from sqlalchemy import func, select

from activities.trajectories import TrajectoryActivities
from db.models import (
    BatchExecutionRow,
    BatchRow,
    BlobRow,
    ExecutionRow,
    MicroStepRow,
    QueryGroupRow,
    RewardRow,
    RunConfigRow,
    RunRow,
    SnapshotRow,
    TaskRow,
    TrajectoryRow,
    TreeNodeRow,
)
from db.session import Database, transaction
from gyre.contracts.ids import RunId, batch_id, execution_id, group_id
from gyre.contracts.messages import OpenBatchInput, OpenBatchResult
from gyre.settings import RunFile
from tests.grown import Grown

RUN = RunId("r")
BLOB = "sha256/00"
Grow = Callable[[Grown], None]


def linear(grown: Grown) -> None:
    """Make two calls with 7 sampled tokens."""
    grown.call(grown.call(None, 10, 3), 5, 4)


def forked(grown: Grown) -> None:
    """Make a shared turn of 8 tokens, then three branches of 2, 3 and 4: 17 sampled tokens."""
    shared = grown.call(None, 10, 8)
    for size in (2, 3, 4):
        grown.call(shared, 6, size)


def with_everything(grown: Grown) -> None:
    """Make main, subagent and side calls."""
    forked(grown)
    grown.call(None, 9, 5, role="subagent")
    grown.call(None, 9, 40, role="side")


@pytest.fixture
def run(database: Database) -> Database:
    config = RunFile.model_validate(
        {
            "run": {"name": RUN},
            "model": {"path": "/m"},
            "tasks": {"train": "/t"},
            "schedule": {"groups_per_batch": 2, "group_size": 4},
        }
    )
    with transaction(database) as session:
        session.add(RunRow(id=RUN, status="running", secret=b"k"))
        session.flush()
        session.add(RunConfigRow(run_id=RUN, revision=0, resolved=config.resolved(), fingerprint="f"))
        session.add(TaskRow(id="t", run_id=RUN, name="a", split="train", path="p", sha256="s"))
        session.add(BlobRow(key=BLOB, sha256="00", num_bytes=1, status="confirmed"))
    return database


def add_group(run: Database, index: int, members: Sequence[tuple[str, float | None, Grow]]) -> None:
    """Add a ready group with a member per (disposition, reward, calls)."""
    group = group_id(RUN, index)
    with transaction(run) as session:
        session.add(
            QueryGroupRow(
                id=group,
                run_id=RUN,
                index=index,
                task_id="t",
                size=len(members),
                status="ready",
                policy_version=0,
                ready_at=func.now(),
            )
        )
        session.flush()
        for number, (disposition, reward, grow) in enumerate(members):
            name = execution_id(group, number)
            session.add(ExecutionRow(id=name, group_id=group, run_id=RUN, index=number))
            session.flush()
            if reward is not None:
                session.add(RewardRow(id=f"{name}/reward", execution_id=name, value=reward))
                session.flush()
            row = session.get_one(ExecutionRow, name)
            row.status, row.disposition = "terminal", disposition
            row.reward_id = None if reward is None else f"{name}/reward"
            earlier, scored, later = (Grown(name, attempt) for attempt in (1, 2, 3))
            for attempt, grown in ((earlier, linear), (scored, grow), (later, linear)):
                grown(attempt)
                attempt.write(session)
            # The scored attempt is the newest one with a snapshot.
            session.add_all(snapshot(attempt.attempt, name) for attempt in (earlier, scored))


def snapshot(attempt: str, execution: str) -> SnapshotRow:
    return SnapshotRow(
        id=f"{attempt}/snapshot",
        attempt_id=attempt,
        execution_id=execution,
        blob_key=BLOB,
        num_files=1,
        num_bytes=1,
        manifest={},
    )


def opened(run: Database) -> OpenBatchResult:
    return TrajectoryActivities(run).open_batch(OpenBatchInput(run=RUN, version=1))


def targets_of(run: Database) -> dict[str, list[tuple[str, int]]]:
    """Return (target node, its number of tokens) per execution, over all its trajectories."""
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    with transaction(run) as session:
        sizes = {row.id: row.num_tokens for row in session.scalars(select(TreeNodeRow))}
        for row in session.scalars(select(TrajectoryRow)):
            found[row.execution_id] += [(name, sizes[name]) for name in row.target_node_ids]
    return dict(found)


def frozen(run: Database) -> dict[str, BatchExecutionRow]:
    with transaction(run) as session:
        return {row.execution_id: row for row in session.scalars(select(BatchExecutionRow))}


def advantages_of(run: Database) -> dict[str, float]:
    return {name: row.advantage for name, row in frozen(run).items()}


def test_shared_turns_count_once_and_no_token_is_lost(run: Database) -> None:
    """Turns that branches share were counted twice, or trainable tokens were reported as 0."""
    add_group(run, 0, [("scored", 1.0, with_everything), ("scored", 0.0, forked)])
    add_group(run, 1, [("scored", 1.0, linear), ("scored", 0.0, linear)])
    result = opened(run)
    targets = targets_of(run)
    first = targets[execution_id(group_id(RUN, 0), 0)]
    assert len({name for name, _ in first}) == len(first)
    by_execution = {name: sum(size for _, size in found) for name, found in targets.items()}
    # The shared 8 tokens count once; 40 of side calls and all of unscored attempts do not count.
    assert sorted(by_execution.values()) == [7, 7, 17, 22]
    assert result.num_targets == 53
    assert {name: row.num_targets for name, row in frozen(run).items()} == by_execution
    with transaction(run) as session:
        counted = sum(row.num_targets for row in session.scalars(select(TrajectoryRow)))
    assert counted == 53


def test_a_forked_rollout_does_not_shift_the_advantages_of_others(run: Database) -> None:
    """Advantages assigned by position went to the wrong rollouts once one had several trajectories."""
    add_group(run, 0, [("scored", 1.0, forked), ("scored", 0.0, linear)])
    add_group(run, 1, [("scored", 0.0, linear), ("scored", 1.0, forked)])
    assert opened(run).num_trajectories == 8
    advantages = advantages_of(run)
    assert [advantages[execution_id(group_id(RUN, g), i)] for g in (0, 1) for i in (0, 1)] == pytest.approx(
        [1, -1, -1, 1]
    )
    with transaction(run) as session:
        for row in session.scalars(select(TrajectoryRow)):
            own = [row.leaf_node_id, *row.target_node_ids]
            assert all(name.startswith(f"{row.execution_id}/attempt/2/") for name in own)


def test_placeholders_and_excluded_executions_train_nothing(run: Database) -> None:
    add_group(
        run,
        0,
        [
            ("scored", 1.0, linear),
            ("placeholder", None, forked),
            ("excluded", None, forked),
            ("scored", 0.0, linear),
        ],
    )
    add_group(run, 1, [("excluded", None, linear), ("placeholder", None, linear)])
    result = opened(run)
    scored = {execution_id(group_id(RUN, 0), number) for number in (0, 3)}
    assert (result.num_executions, result.num_trajectories, result.num_targets) == (2, 2, 14)
    assert targets_of(run).keys() == scored
    # Neither moves the baseline: the mean of 1 and 0 is between the two.
    assert advantages_of(run) == pytest.approx(dict(zip(sorted(scored), (1, -1), strict=True)))
    with transaction(run) as session:
        assert session.get_one(BatchRow, batch_id(RUN, 1)).num_executions == 2


def test_executions_without_an_advantage_get_micro_steps_of_their_own(run: Database) -> None:
    """They have no gradient, so they must not take room from those that have one."""
    add_group(run, 0, [("scored", 1.0, forked), ("scored", 1.0, linear)])
    add_group(run, 1, [("scored", 1.0, forked), ("scored", 0.0, linear)])
    opened(run)
    with transaction(run) as session:
        owner = {row.id: row.execution_id for row in session.scalars(select(TrajectoryRow))}
        steps = [
            {owner[trajectory] for trajectory in row.trajectory_ids}
            for row in session.scalars(select(MicroStepRow).order_by(MicroStepRow.index))
        ]
    silent, trained = ({execution_id(group_id(RUN, group), i) for i in (0, 1)} for group in (0, 1))
    assert steps == [trained, silent]


def test_opening_a_batch_again_changes_nothing(run: Database) -> None:
    for index in (0, 1):
        add_group(run, index, [("scored", 1.0, forked), ("scored", 0.0, linear)])
    first = opened(run)
    before = targets_of(run), advantages_of(run)
    again = opened(run)
    assert again.batch_id == first.batch_id
    assert (targets_of(run), advantages_of(run)) == before
