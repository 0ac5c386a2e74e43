"""Business names. An id is also a Temporal workflow id if there is a workflow for what it names.

An id is a path, so a child's id names its parents:
``run/<run>/group/<g>/rollout/<i>/attempt/<n>/call/<k>``.
"""

import re
from typing import NewType

RunId = NewType("RunId", str)
"""A run's name: 1 to 40 characters ``a-z 0-9 -``, starting with a letter or a digit."""
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
    """Return the id of an attempt's snapshot. There is at most one."""
    return SnapshotId(f"{attempt}/snapshot")


def evaluation_id(execution: ExecutionId, number: int) -> EvaluationId:
    return EvaluationId(f"{execution}/evaluation/{number}")


def reward_id(evaluation: EvaluationId) -> RewardId:
    return RewardId(f"{evaluation}/reward")


def batch_id(run: RunId, version: int) -> BatchId:
    """Return the id of the batch whose update makes policy ``version``; the first is 1."""
    return BatchId(f"run/{run}/batch/{version}")


def burst_id(run: RunId, version: int) -> str:
    """Return the id of the burst that starts from policy ``version``."""
    return f"run/{run}/burst/{version}"


def checkpoint_id(run: RunId, version: int) -> str:
    return f"run/{run}/checkpoint/{version}"


def cell_id(run: RunId, index: int) -> CellId:
    return CellId(f"run/{run}/cell/{index}")


def run_of(any_id: str) -> RunId:
    """Return the run that an id belongs to. Raises ValueError if the text is not an id."""
    parts = any_id.split("/")
    if len(parts) < 2 or parts[0] != "run":
        raise ValueError(f"not a Gyre id: {any_id!r}")
    return RunId(parts[1])


def execution_of(any_id: str) -> ExecutionId:
    """Return the execution that the id of an attempt, call, node, snapshot or evaluation belongs to."""
    head, mark, tail = any_id.partition("/rollout/")
    if not mark:
        raise ValueError(f"not the id of an execution or its parts: {any_id!r}")
    return ExecutionId(f"{head}/rollout/{tail.split('/')[0]}")


def control_queue(run: RunId) -> str:
    return f"{run}/control"


def short_queue(run: RunId) -> str:
    return f"{run}/short"


def evaluate_queue(run: RunId) -> str:
    return f"{run}/evaluate"


def host_queue(run: RunId, host: str) -> str:
    """Return the queue of a host's harnesses, whose slots are taken for hours."""
    return f"{run}/host/{host}"


def host_short_queue(run: RunId, host: str) -> str:
    """Return the queue of a host's short sandbox work, which must not wait behind harnesses."""
    return f"{run}/host/{host}/short"


def cell_queue(cell: CellId, epoch: int) -> str:
    """Return the queue of one incarnation of a cell: a restarted cell must not pick up stale work."""
    run = run_of(cell)
    return f"{run}/cell/{cell.rsplit('/', 1)[1]}/{epoch}"
