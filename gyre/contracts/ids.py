"""Business names. Each id is also a Temporal workflow id where a workflow of that name exists.

An id is a path, so a child's id tells its parents:
``run/<run>/group/<g>/rollout/<i>/attempt/<n>/call/<k>``.
"""

import re
from typing import NewType

RunId = NewType("RunId", str)
"""The run's name: 1 to 40 of ``a-z 0-9 -``, starting with a letter or a digit."""
TaskId = NewType("TaskId", str)
GroupId = NewType("GroupId", str)
ExecutionId = NewType("ExecutionId", str)
AttemptId = NewType("AttemptId", str)
CallId = NewType("CallId", str)
NodeId = NewType("NodeId", str)
SnapshotId = NewType("SnapshotId", str)
EvaluationId = NewType("EvaluationId", str)
RewardId = NewType("RewardId", str)
BatchId = NewType("BatchId", str)
CellId = NewType("CellId", str)

RUN_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,39}$")


def run_workflow_id(run: RunId) -> str:
    return f"run/{run}"


def task_id(run: RunId, name: str) -> TaskId:
    return TaskId(f"run/{run}/task/{name}")


def group_id(run: RunId, index: int) -> GroupId:
    return GroupId(f"run/{run}/group/{index}")


def execution_id(group: GroupId, index: int) -> ExecutionId:
    return ExecutionId(f"{group}/rollout/{index}")


def attempt_id(execution: ExecutionId, number: int) -> AttemptId:
    return AttemptId(f"{execution}/attempt/{number}")


def call_id(attempt: AttemptId, index: int) -> CallId:
    return CallId(f"{attempt}/call/{index}")


def node_id(attempt: AttemptId, index: int) -> NodeId:
    return NodeId(f"{attempt}/node/{index}")


def snapshot_id(attempt: AttemptId) -> SnapshotId:
    """One attempt leaves at most one snapshot."""
    return SnapshotId(f"{attempt}/snapshot")


def evaluation_id(execution: ExecutionId, number: int) -> EvaluationId:
    return EvaluationId(f"{execution}/evaluation/{number}")


def reward_id(evaluation: EvaluationId) -> RewardId:
    return RewardId(f"{evaluation}/reward")


def batch_id(run: RunId, version: int) -> BatchId:
    """The batch whose update makes policy ``version`` (the first is 1)."""
    return BatchId(f"run/{run}/batch/{version}")


def burst_id(run: RunId, version: int) -> str:
    """The burst that starts from policy ``version``."""
    return f"run/{run}/burst/{version}"


def checkpoint_id(run: RunId, version: int) -> str:
    return f"run/{run}/checkpoint/{version}"


def cell_id(run: RunId, index: int) -> CellId:
    return CellId(f"run/{run}/cell/{index}")


def run_of(any_id: str) -> RunId:
    """The run that an id belongs to. Raises ValueError for anything that is not an id."""
    parts = any_id.split("/")
    if len(parts) < 2 or parts[0] != "run":
        raise ValueError(f"not a Gyre id: {any_id!r}")
    return RunId(parts[1])


def execution_of(any_id: str) -> ExecutionId:
    """The execution that an attempt, call, node, snapshot or evaluation belongs to."""
    head, mark, tail = any_id.partition("/rollout/")
    if not mark:
        raise ValueError(f"id names no rollout: {any_id!r}")
    return ExecutionId(f"{head}/rollout/{tail.split('/')[0]}")


def control_queue(run: RunId) -> str:
    return f"{run}/control"


def short_queue(run: RunId) -> str:
    return f"{run}/short"


def evaluate_queue(run: RunId) -> str:
    return f"{run}/evaluate"


def host_queue(run: RunId, host: str) -> str:
    """Harnesses: slots for hours. Re-attaching to one needs its host."""
    return f"{run}/host/{host}"


def host_short_queue(run: RunId, host: str) -> str:
    """Sandbox work of seconds on that host, which must not wait behind harnesses."""
    return f"{run}/host/{host}/short"


def cell_queue(cell: CellId, epoch: int) -> str:
    """The queue of one life of a cell: a restarted cell must not pick up stale work."""
    run = run_of(cell)
    return f"{run}/cell/{cell.rsplit('/', 1)[1]}/{epoch}"
