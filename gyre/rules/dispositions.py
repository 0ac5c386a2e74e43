"""Outcomes of attempts and executions. No reward depends on time, length or the way an attempt ended."""

from dataclasses import dataclass
from enum import StrEnum

from gyre.contracts.lifecycle import Disposition, EndReason


class AttemptOutcome(StrEnum):
    EVALUATE = "evaluate"
    """The harness worked on the workspace: snapshot and score it, however the harness ended."""
    RETRY = "retry"
    """Infrastructure failed before the policy could do anything."""


def attempt_outcome(end_reason: EndReason, exit_code: int | None, num_calls: int) -> AttemptOutcome:
    """Decide whether an ended attempt is scored or followed by another.

    Exit codes lie, so they count only if the policy was never asked: a harness that failed without a single
    committed call did not fail because of the policy.
    """
    if end_reason in (EndReason.PROVISION_FAILED, EndReason.SANDBOX_LOST, EndReason.CANCELLED):
        return AttemptOutcome.RETRY
    if num_calls == 0 and end_reason is EndReason.EXITED and exit_code != 0:
        return AttemptOutcome.RETRY
    return AttemptOutcome.EVALUATE


@dataclass(frozen=True)
class Ending:
    """An execution's one disposition."""

    disposition: Disposition
    detail: str | None = None
    """One sentence that says why it is not ``scored``."""


def ending(*, worked: bool, snapshot: bool, reward_valid: bool, failure: str | None) -> Ending:
    """Decide the disposition of an execution that was scored or has used up its budgets.

    ``worked``: some attempt ran the harness to its end. ``snapshot``: it left a saved workspace.
    ``reward_valid``: an evaluation of the snapshot succeeded. ``failure``: the newest failure's sentence.
    """
    if reward_valid:
        return Ending(Disposition.SCORED)
    if not worked:
        return Ending(Disposition.PLACEHOLDER, detail=failure or "no attempt could start")
    if not snapshot:
        return Ending(Disposition.EXCLUDED, detail=failure or "the workspace could not be saved")
    return Ending(Disposition.EXCLUDED, detail=failure or "no valid reward within the budget")
