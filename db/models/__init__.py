"""The tables, grouped by aggregate. A class named …Row is one table.

cells.py      cells, role transitions, leases, waits
rollouts.py   groups, executions, attempts, snapshots, rewards
runs.py       runs, configuration revisions, tasks
training.py   batches, micro-steps, contributions, versions
trees.py      model calls and prefix tree nodes
"""

from db.models.cells import CellRow, CellTransitionRow, LeaseRow, WaitRow
from db.models.rollouts import (
    AttemptRow,
    BlobRow,
    EvaluationRow,
    ExecutionRow,
    QueryGroupRow,
    RewardRow,
    SnapshotRow,
)
from db.models.runs import RunConfigRow, RunRow, TaskRow
from db.models.training import (
    BatchExecutionRow,
    BatchRow,
    CheckpointRow,
    ContributionRow,
    MicroStepRow,
    PolicyVersionRow,
    TrajectoryRow,
)
from db.models.trees import ModelCallRow, TreeNodeRow

__all__ = [
    "AttemptRow",
    "BatchExecutionRow",
    "BatchRow",
    "BlobRow",
    "CellRow",
    "CellTransitionRow",
    "CheckpointRow",
    "ContributionRow",
    "EvaluationRow",
    "ExecutionRow",
    "LeaseRow",
    "MicroStepRow",
    "ModelCallRow",
    "PolicyVersionRow",
    "QueryGroupRow",
    "RewardRow",
    "RunConfigRow",
    "RunRow",
    "SnapshotRow",
    "TaskRow",
    "TrajectoryRow",
    "TreeNodeRow",
    "WaitRow",
]
