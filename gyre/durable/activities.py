"""Typed activity names: workflows call them, and ``activities/`` registers under them."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from gyre.contracts import messages as m

In = TypeVar("In", bound=BaseModel)
Out = TypeVar("Out", bound=BaseModel)


@dataclass(frozen=True)
class Activity(Generic[In, Out]):
    """An activity's name with the types of its input and its result."""

    name: str
    input: type[In]
    output: type[Out]


LOAD_PLAN = Activity("load_plan", m.RunRef, m.RunPlan)
AWAIT_DECISION = Activity("await_decision", m.DecisionInput, m.Decision)
FINISH_RUN = Activity("finish_run", m.FinishInput, m.TrainingRunResult)

COMMIT_GROUP = Activity("commit_group", m.GroupRef, m.QueryGroupResult)
OPEN_ATTEMPT = Activity("open_attempt", m.OpenAttemptInput, m.AttemptState)
FOLD_EXECUTION = Activity("fold_execution", m.FoldInput, m.RolloutResult)

PROVISION_WORKSPACE = Activity("provision_workspace", m.AttemptInput, m.ProvisionResult)
RUN_HARNESS = Activity("run_harness", m.HarnessInput, m.HarnessResult)
SEAL_ATTEMPT = Activity("seal_attempt", m.SealInput, m.SealResult)
TAKE_SNAPSHOT = Activity("take_snapshot", m.SnapshotInput, m.SnapshotResult)
EVALUATE_SNAPSHOT = Activity("evaluate_snapshot", m.EvaluateInput, m.EvaluateResult)

OPEN_BATCH = Activity("open_batch", m.OpenBatchInput, m.OpenBatchResult)
AWAIT_CELL = Activity("await_cell", m.CellRef, m.CellState)
COMMAND_CELL = Activity("command_cell", m.CellCommand, m.CellState)

ENTER_ROLE = Activity("enter_role", m.CellCommand, m.CellState)
TRAIN_BATCH = Activity("train_batch", m.TrainInput, m.TrainResult)
PUBLISH_WEIGHTS = Activity("publish_weights", m.PublishInput, m.PublishResult)
