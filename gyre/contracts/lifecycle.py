"""Lifecycles as enums with transition tables. ``advance`` is the only way from one state to another."""

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
    """Every execution has a terminal disposition and nothing has trained on it yet."""
    ASSIGNED = "assigned"
    """In an open batch."""
    TRAINED = "trained"
    DROPPED = "dropped"


class ExecutionStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    TERMINAL = "terminal"


class Disposition(StrEnum):
    SCORED = "scored"
    """A valid reward; 0 is one."""
    PLACEHOLDER = "placeholder"
    """Nothing to evaluate because of complete failure. No targets, not in M."""
    EXCLUDED = "excluded"
    """No valid reward within the budget. Not in the group's statistics."""


class AttemptStatus(StrEnum):
    OPEN = "open"
    SEALED = "sealed"


class CallStatus(StrEnum):
    IN_FLIGHT = "in_flight"
    COMMITTED = "committed"
    FAILED = "failed"


class NodeKind(StrEnum):
    CONTEXT = "context"
    """Prompt, tool and harness text: never a target."""
    SAMPLED = "sampled"
    """Token ids that the policy sampled, stop token included."""


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
    """What a group is for. Only ``train`` groups enter the account and the batches."""

    TRAIN = "train"
    HELDOUT = "heldout"
    """Sampled at the run's temperature."""
    GREEDY = "greedy"
    """Held-out task, temperature 0."""


class EndReason(StrEnum):
    """How an attempt's harness ended. The reward never derives from it."""

    EXITED = "exited"
    TIME_LIMIT = "time_limit"
    PROVISION_FAILED = "provision_failed"
    SANDBOX_LOST = "sandbox_lost"
    CANCELLED = "cancelled"


class FinishReason(StrEnum):
    """Why the engine stopped sampling."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


RUN = {
    RunStatus.CREATED: {RunStatus.RUNNING, RunStatus.FAILED, RunStatus.STOPPED},
    RunStatus.RUNNING: {RunStatus.FINISHED, RunStatus.FAILED, RunStatus.STOPPED},
    RunStatus.FINISHED: set[RunStatus](),
    # A failed or stopped run can be taken up again by `gyre run --resume`.
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
    """Return ``target`` if the table allows it or it is already reached.

    Raises IllegalTransition otherwise: terminal states never change.
    """
    if target == current:
        return target
    if target not in table[current]:
        raise IllegalTransition(f"{type(current).__name__}: {current} -> {target} is not allowed")
    return target
