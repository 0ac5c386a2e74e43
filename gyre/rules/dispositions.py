"""What becomes of an execution. The reward never derives from time, length or how it ended."""

from dataclasses import dataclass
from enum import StrEnum

from gyre.contracts.lifecycle import Disposition, EndReason


class AttemptOutcome(StrEnum):
    EVALUATE = "evaluate"
    """The harness worked on the workspace: snapshot it and score it, however it ended."""
    RETRY = "retry"
    """Infrastructure failed before the policy could show anything."""


def attempt_outcome(end_reason: EndReason, exit_code: int | None, num_calls: int) -> AttemptOutcome:
    """Whether an ended attempt is worth scoring.

    Exit codes lie, so they count only where the policy was never asked: a harness that failed
    without a single committed call did not fail by the policy's doing.
    """
    if end_reason in (EndReason.PROVISION_FAILED, EndReason.SANDBOX_LOST, EndReason.CANCELLED):
        return AttemptOutcome.RETRY
    if num_calls == 0 and end_reason is EndReason.EXITED and exit_code != 0:
        return AttemptOutcome.RETRY
    return AttemptOutcome.EVALUATE


@dataclass(frozen=True)
class Ending:
    """An execution's one disposition, and why where it is not ``scored``."""

    disposition: Disposition
    detail: str | None = None


def ending(*, worked: bool, snapshot: bool, reward_valid: bool, failure: str | None) -> Ending:
    """The disposition of an execution whose budgets are used up or that was scored.

    ``worked``: some attempt ran the harness. ``snapshot``: it left a saved workspace.
    ``reward_valid``: an evaluation of it succeeded. ``failure``: the last failure's sentence.
    """
    if reward_valid:
        return Ending(Disposition.SCORED)
    if not worked:
        return Ending(Disposition.PLACEHOLDER, detail=failure or "no attempt could start")
    if not snapshot:
        return Ending(Disposition.EXCLUDED, detail=failure or "the workspace could not be saved")
    return Ending(Disposition.EXCLUDED, detail=failure or "no valid reward within the budget")
