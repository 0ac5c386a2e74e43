"""Time-outs and retry policies of every activity, in one place.

A stage with a limit of its own gets that limit plus a margin, so that the stage's own code, which
can say what happened, fires before Temporal's time-out, which cannot.
"""

from datetime import timedelta
from typing import TypedDict

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

NEVER_RETRIED = [
    "BadInput",
    "Fenced",
    "IllegalTransition",
    "EvaluatorFailed",
    "WorkspaceUnusable",
    "PayloadsTooLarge",
]
MARGIN_S = 30.0


class Options(TypedDict, total=False):
    start_to_close_timeout: timedelta
    schedule_to_close_timeout: timedelta
    schedule_to_start_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy
    cancellation_type: ActivityCancellationType


def database() -> Options:
    """A short transaction: retried until Postgres is back. No limit counts time without a worker."""
    return Options(
        start_to_close_timeout=timedelta(seconds=60),
        retry_policy=_policy(maximum_s=15),
    )


def decision() -> Options:
    """A long poll that heartbeats; a lost one is asked again."""
    return Options(
        start_to_close_timeout=timedelta(hours=24),
        heartbeat_timeout=timedelta(seconds=20),
        retry_policy=_policy(maximum_s=15),
    )


def stage(limit_s: float, *, attempts: int = 0) -> Options:
    """Provision, seal, snapshot: idempotent, each try bounded by the stage's limit.

    ``attempts`` 0 is no bound: a Postgres or an S3 that is away must not cost finished work. What a
    retry cannot help fails at once by its error's type.
    """
    return Options(
        start_to_close_timeout=timedelta(seconds=limit_s + MARGIN_S),
        heartbeat_timeout=timedelta(seconds=30),
        retry_policy=_policy(maximum_s=15, attempts=attempts),
    )


def harness(limit_s: float) -> Options:
    """Re-attached after a worker's death, so a retry costs nothing but the attach."""
    return Options(
        start_to_close_timeout=timedelta(seconds=limit_s + 600),
        heartbeat_timeout=timedelta(seconds=30),
        retry_policy=_policy(maximum_s=5, attempts=50),
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )


def evaluator(limit_s: float) -> Options:
    """One try at scoring. Its own failure comes back to the workflow; an outage is retried."""
    return Options(
        start_to_close_timeout=timedelta(seconds=limit_s + MARGIN_S),
        heartbeat_timeout=timedelta(seconds=30),
        retry_policy=_policy(maximum_s=15),
    )


def cell_work(limit_s: float) -> Options:
    """A command to one life of a cell: never retried blindly, the burst looks at the cell again."""
    return Options(
        start_to_close_timeout=timedelta(seconds=limit_s),
        schedule_to_start_timeout=timedelta(seconds=30),
        heartbeat_timeout=timedelta(seconds=20),
        retry_policy=RetryPolicy(maximum_attempts=1),
    )


def cell_command() -> Options:
    """An Update to a Cell workflow under an id that is stable over retries."""
    return Options(
        start_to_close_timeout=timedelta(minutes=30),
        heartbeat_timeout=timedelta(seconds=20),
        retry_policy=_policy(maximum_s=5, attempts=5),
    )


def _policy(*, maximum_s: float, attempts: int = 0) -> RetryPolicy:
    return RetryPolicy(
        initial_interval=timedelta(seconds=1),
        maximum_interval=timedelta(seconds=maximum_s),
        maximum_attempts=attempts,
        non_retryable_error_types=NEVER_RETRIED,
    )
