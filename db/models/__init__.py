"""The tables, by aggregate."""

from db.models.cells import Cell, CellTransition, Lease, Wait
from db.models.rollouts import Attempt, Blob, Evaluation, Execution, QueryGroup, Reward, Snapshot
from db.models.runs import Run, RunConfig, Task
from db.models.training import (
    Batch,
    BatchExecution,
    Checkpoint,
    Contribution,
    MicroStep,
    PolicyVersion,
    Trajectory,
)
from db.models.trees import ModelCall, TreeNode

__all__ = [
    "Attempt",
    "Batch",
    "BatchExecution",
    "Blob",
    "Cell",
    "CellTransition",
    "Checkpoint",
    "Contribution",
    "Evaluation",
    "Execution",
    "Lease",
    "MicroStep",
    "ModelCall",
    "PolicyVersion",
    "QueryGroup",
    "Reward",
    "Run",
    "RunConfig",
    "Snapshot",
    "Task",
    "Trajectory",
    "TreeNode",
    "Wait",
]
