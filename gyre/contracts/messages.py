"""Messages between workflows and activities: ids and small numbers, never data.

Every payload stays far below 16 KiB. New fields get defaults, so that recorded histories replay.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gyre.contracts.lifecycle import CellRole, Disposition, EndReason


class Payload(BaseModel):
    """Base of all messages: each becomes one Temporal payload."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StageLimits(Payload):
    """Time limits in seconds, per stage and in total, and budgets of attempts and tries."""

    provision_s: float
    harness_s: float
    snapshot_s: float
    evaluate_s: float
    total_s: float
    attempts: int
    evaluations: int


# Sandbox, snapshot, evaluation (activities/harness.py, snapshots.py, evaluator.py)


class AttemptInput(Payload):
    """``provision_workspace``: make the attempt's workspace from its task, once."""

    attempt_id: str
    limit_s: float


class ProvisionResult(Payload):
    num_files: int
    num_bytes: int


class HarnessInput(Payload):
    """``run_harness``: start the harness or attach to it, and return when it has ended."""

    attempt_id: str
    limit_s: float


class HarnessResult(Payload):
    end_reason: EndReason
    exit_code: int | None
    """None if the time limit killed it. Exit codes lie: nothing depends on this alone."""
    seconds: float
    failure: str | None = None
    """One sentence if the sandbox failed, or killed the harness because of its memory or disk."""


class SealInput(Payload):
    """``seal_attempt``: refuse further writes, then kill every process of the attempt."""

    attempt_id: str
    end_reason: EndReason
    exit_code: int | None = None
    failure: str | None = None


class SealResult(Payload):
    """Totals of what the sealed attempt recorded."""

    num_calls: int
    num_input_tokens: int
    num_output_tokens: int
    num_branches: int
    """Number of leaves of its tree."""


class SnapshotInput(Payload):
    """``take_snapshot``: capture the sealed attempt's workspace into S3, once."""

    attempt_id: str
    limit_s: float


class SnapshotResult(Payload):
    snapshot_id: str
    num_files: int
    num_bytes: int
    num_changed_files: int
    """Number of files that differ from what was provisioned."""


class EvaluateInput(Payload):
    """``evaluate_snapshot``: try once to score a snapshot in a fresh sandbox.

    Raises EvaluatorFailed if there is no valid reward; the workflow decides whether to try again.
    """

    evaluation_id: str
    execution_id: str
    snapshot_id: str
    number: int
    try_number: int
    limit_s: float
    final: bool = False
    """Whether it is the budget's last try, whose failure ends the evaluation."""


class EvaluateResult(Payload):
    reward_id: str
    reward: float
    seconds: float


# Rollout and group (activities/executions.py)


class OpenAttemptInput(Payload):
    execution_id: str
    host: str
    max_attempts: int


class AttemptState(Payload):
    """Point at which to resume the execution: its newest attempt and the first unfinished stage."""

    attempt_id: str
    number: int
    stage: Literal["provision", "snapshot", "evaluate", "exhausted", "terminal"]
    failure: str | None = None
    """Failure of the newest attempt, if it failed."""
    worked: bool = False
    """Whether some attempt's harness ran to its end, although its work could not be scored."""
    snapshot_id: str | None = None
    next_evaluation: int = 1


class FoldInput(Payload):
    """``fold_execution``: commit the execution's one disposition, or only read it."""

    execution_id: str
    disposition: Disposition | None
    """None only reads what is committed, for an execution that is already terminal."""
    reward_id: str | None = None
    detail: str | None = None


class RolloutInput(Payload):
    execution_id: str
    task: str
    host: str
    limits: StageLimits


class RolloutResult(Payload):
    disposition: Disposition
    reward: float | None
    num_attempts: int
    num_calls: int
    num_output_tokens: int
    num_evaluations: int
    detail: str | None = None


class EvaluationInput(Payload):
    evaluation_id: str
    execution_id: str
    snapshot_id: str
    number: int
    limits: StageLimits


class EvaluationResult(Payload):
    """``reward`` is None if the budget of tries gave no valid one."""

    reward_id: str | None
    reward: float | None
    num_tries: int
    failure: str | None = None


class QueryGroupInput(Payload):
    group_id: str
    task: str
    size: int
    host: str
    limits: StageLimits


class QueryGroupResult(Payload):
    status: str
    scored: int
    placeholder: int
    excluded: int


class GroupRef(Payload):
    group_id: str


# Run, burst, cell (activities/decisions.py, trajectories.py, cells.py)


class TrainingRunInput(Payload):
    """A run's name, and how far it has come if it continues as new."""

    run: str
    last_group: int = -1
    """Highest index of a group whose workflow this chain of runs has started."""


class TrainingRunResult(Payload):
    status: str
    updates: int


class RunRef(Payload):
    run: str


class RunPlan(Payload):
    """Values of the run file that workflows need."""

    run: str
    host: str
    limits: StageLimits
    num_cells: int
    steps_before_new_history: int = 50


class DecisionInput(Payload):
    run: str
    last_group: int


class GroupStart(Payload):
    group_id: str
    index: int
    task: str
    size: int


class Decision(Payload):
    """The next thing to do. ``start`` lists groups that have rows and may not have workflows yet."""

    kind: Literal["start", "burst", "finish", "fail"]
    groups: list[GroupStart] = Field(default_factory=list[GroupStart])
    version: int = 0
    num_updates: int = 0
    reason: str | None = None


class FinishInput(Payload):
    run: str
    failure: str | None = None


class BurstInput(Payload):
    run: str
    version: int
    """Policy version that the burst starts from."""
    num_updates: int
    cell_id: str


class BurstResult(Payload):
    version: int
    """Policy version that the burst published."""


class OpenBatchInput(Payload):
    run: str
    version: int
    """Policy version that the batch's update makes."""


class OpenBatchResult(Payload):
    batch_id: str | None
    """None if fewer groups are ready than a batch needs."""
    num_executions: int
    num_trajectories: int
    num_targets: int


class CellState(Payload):
    cell_id: str
    role: CellRole
    epoch: int
    version: int
    """Policy version that its engine serves."""


class CellRef(Payload):
    cell_id: str


class CellCommand(Payload):
    """A role change. Refused unless ``epoch`` and ``from_role`` are the cell's own."""

    command_id: str
    cell_id: str
    epoch: int
    from_role: CellRole
    to_role: CellRole
    version: int = 0
    """Policy version that the trainer must hold to train."""


class CellInput(Payload):
    """State of the Cell workflow: the commands it has seen survive a continue-as-new."""

    cell_id: str
    seen: dict[str, CellState] = Field(default_factory=dict[str, CellState])


class TrainInput(Payload):
    cell_id: str
    epoch: int
    batch_id: str
    version: int


class TrainResult(Payload):
    version: int
    loss: float
    grad_norm: float
    seconds: float


class PublishInput(Payload):
    cell_id: str
    epoch: int
    version: int


class PublishResult(Payload):
    version: int
    num_bytes: int
    seconds: float
