"""Errors. Each belongs to one boundary and says whether a retry can help.

GyreError
├── BadInput            a command line, run file or task is wrong; exit code 2
├── IllegalTransition   a lifecycle table forbids the change
├── Fenced              the writer's attempt is sealed, or its epoch is over
├── ProvisionFailed     the workspace could not be made
├── SandboxFailed       isolation or the harness process could not be started
├── SnapshotFailed      the workspace could not be captured or stored
│   └── WorkspaceUnusable   it never can be: it is missing, unreadable or over its cap
├── EvaluatorFailed     no valid reward: the reward is pending, never zero
├── EngineFailed        the inference server failed or is unreachable
├── TrainerFailed       the training process failed
│   └── TrainingImpossible  the batch itself cannot be trained
├── CellRefused         a cell refused a role change or failed during it: read its state again
└── TransferFailed      transferred weights have a wrong version stamp or checksum
"""

from typing import ClassVar


class GyreError(Exception):
    """Base of all errors of Gyre. Its message is one sentence that a user can act on."""

    boundary: ClassVar[str] = "gyre"
    retryable: ClassVar[bool] = True


class BadInput(GyreError):
    boundary, retryable = "input", False


class IllegalTransition(GyreError):
    boundary, retryable = "state", False


class Fenced(GyreError):
    boundary, retryable = "state", False


class ProvisionFailed(GyreError):
    boundary, retryable = "provision", True


class SandboxFailed(GyreError):
    boundary, retryable = "sandbox", True


class SnapshotFailed(GyreError):
    boundary, retryable = "snapshot", True


class WorkspaceUnusable(SnapshotFailed):
    retryable = False


class EvaluatorFailed(GyreError):
    boundary, retryable = "evaluator", True


class EngineFailed(GyreError):
    boundary, retryable = "engine", True


class TrainerFailed(GyreError):
    boundary, retryable = "trainer", True


class TrainingImpossible(TrainerFailed):
    retryable = False


class CellRefused(GyreError):
    boundary, retryable = "cell", False


class TransferFailed(GyreError):
    boundary, retryable = "transfer", True
