"""Lifecycles: enums with transition tables. States change by ``advance`` only."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from gyre.contracts.errors import IllegalTransition

S = TypeVar("S", bound=StrEnum)


class RunStatus(StrEnum):
    # The database's CHECK also allows "paused", which was never written.
    CREATED = "created"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


class GroupStatus(StrEnum):
    RUNNING = "running"
    READY = "ready"
    """Every execution is terminal, and no batch holds the group yet."""
    ASSIGNED = "assigned"
    """It is in an open batch."""
    TRAINED = "trained"
    DROPPED = "dropped"


class ExecutionStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    TERMINAL = "terminal"


class Disposition(StrEnum):
    SCORED = "scored"
    """It has a valid reward, which may be 0."""
    PLACEHOLDER = "placeholder"
    """Complete failure left nothing to evaluate. It has no targets and does not count in M."""
    EXCLUDED = "excluded"
    """No valid reward came within the budget. It is not in the group's statistics."""


class AttemptStatus(StrEnum):
    OPEN = "open"
    SEALED = "sealed"


class CallStatus(StrEnum):
    IN_FLIGHT = "in_flight"
    COMMITTED = "committed"
    FAILED = "failed"


class NodeKind(StrEnum):
    CONTEXT = "context"
    """Text of prompts, tools and the harness: never a target."""
    SAMPLED = "sampled"
    """Token ids that the policy sampled, including the stop token."""


class EvaluationStatus(StrEnum):
    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class BlobStatus(StrEnum):
    RESERVED = "reserved"
    CONFIRMED = "confirmed"


class BatchStatus(StrEnum):
    OPEN = "open"
    TRAINED = "trained"


class MicroStepStatus(StrEnum):
    OPEN = "open"
    CLAIMED = "claimed"
    DONE = "done"


class MicroStepKind(StrEnum):
    SCORE = "score"
    GRAD = "grad"


class ContributionStatus(StrEnum):
    SENT = "sent"
    ACCEPTED = "accepted"
    VOID = "void"


class CellRole(StrEnum):
    ROLLOUT = "rollout"
    DRAINING = "draining"
    LOADING = "loading"
    TRAINING = "training"
    RETURNING = "returning"
    LOST = "lost"


class Purpose(StrEnum):
    """Purpose of a group. Only ``train`` groups enter the account and the batches."""

    TRAIN = "train"
    HELDOUT = "heldout"
    """Held-out task, sampled at the run's temperature."""
    GREEDY = "greedy"
    """Held-out task, sampled at temperature 0."""


class EndReason(StrEnum):
    """Reason why an attempt ended. The reward never depends on it."""

    EXITED = "exited"
    TIME_LIMIT = "time_limit"
    PROVISION_FAILED = "provision_failed"
    SANDBOX_LOST = "sandbox_lost"
    CANCELLED = "cancelled"


class FinishReason(StrEnum):
    """Reason why the engine stopped sampling."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


RUN = {
    RunStatus.CREATED: {RunStatus.RUNNING, RunStatus.FAILED, RunStatus.STOPPED},
    RunStatus.RUNNING: {RunStatus.FINISHED, RunStatus.FAILED, RunStatus.STOPPED},
    RunStatus.FINISHED: set[RunStatus](),
    # `gyre run --resume` resumes a failed or stopped run.
    RunStatus.FAILED: {RunStatus.RUNNING},
    RunStatus.STOPPED: {RunStatus.RUNNING},
}
GROUP = {
    GroupStatus.RUNNING: {GroupStatus.READY, GroupStatus.DROPPED},
    GroupStatus.READY: {GroupStatus.ASSIGNED, GroupStatus.DROPPED},
    GroupStatus.ASSIGNED: {GroupStatus.TRAINED},
    GroupStatus.TRAINED: set[GroupStatus](),
    GroupStatus.DROPPED: set[GroupStatus](),
}
EXECUTION = {
    ExecutionStatus.PENDING: {ExecutionStatus.RUNNING, ExecutionStatus.TERMINAL},
    ExecutionStatus.RUNNING: {ExecutionStatus.TERMINAL},
    ExecutionStatus.TERMINAL: set[ExecutionStatus](),
}
CELL = {
    CellRole.ROLLOUT: {CellRole.DRAINING, CellRole.LOST},
    CellRole.DRAINING: {CellRole.LOADING, CellRole.ROLLOUT, CellRole.LOST},
    CellRole.LOADING: {CellRole.TRAINING, CellRole.LOST},
    CellRole.TRAINING: {CellRole.RETURNING, CellRole.LOST},
    CellRole.RETURNING: {CellRole.ROLLOUT, CellRole.LOST},
    CellRole.LOST: {CellRole.ROLLOUT},
}


def advance(table: Mapping[S, set[S]], current: S, target: S) -> S:
    """Return ``target`` if the table allows it or it is current already. Raises IllegalTransition if not."""
    if target == current:
        return target
    if target not in table[current]:
        raise IllegalTransition(f"{type(current).__name__}: {current} -> {target} is not allowed")
    return target
