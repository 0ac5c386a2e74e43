"""Time-outs and retry policies of all activities.

A stage with its own limit gets that limit plus a margin. The stage's code can say what happened, Temporal's
time-out cannot, so the stage must notice first.
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
    "PayloadsTooLarge",  # Temporal's own: an oversized result stays oversized
]
"""Types of errors that end an activity at once."""
MARGIN_S = 30.0


class Options(TypedDict, total=False):
    """Keyword arguments of ``workflow.execute_activity``."""

    start_to_close_timeout: timedelta
    schedule_to_close_timeout: timedelta
    schedule_to_start_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy
    cancellation_type: ActivityCancellationType


def database() -> Options:
    """Options of a short transaction: retried for as long as Postgres or every worker is away."""
    return Options(
        start_to_close_timeout=timedelta(seconds=60),
        retry_policy=_policy(maximum_s=15),
    )


def decision() -> Options:
    """Options of a long poll that heartbeats. If its worker is lost, the poll is repeated."""
    return Options(
        start_to_close_timeout=timedelta(hours=24),
        heartbeat_timeout=timedelta(seconds=20),
        retry_policy=_policy(maximum_s=15),
    )


def stage(limit_s: float, *, attempts: int = 0) -> Options:
    """Options of provision, seal and snapshot: idempotent, and each try is bounded by the stage's limit.

    ``attempts`` 0 is unlimited, because an outage of Postgres or S3 must not cost finished work. An error
    that a retry cannot help ends the activity by its type.
    """
    return Options(
        start_to_close_timeout=timedelta(seconds=limit_s + MARGIN_S),
        heartbeat_timeout=timedelta(seconds=30),
        retry_policy=_policy(maximum_s=15, attempts=attempts),
    )


def harness(limit_s: float) -> Options:
    """Options of a harness. A retry attaches to the running harness, so it costs next to nothing."""
    return Options(
        start_to_close_timeout=timedelta(seconds=limit_s + 600),
        heartbeat_timeout=timedelta(seconds=30),
        retry_policy=_policy(maximum_s=5, attempts=50),
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )


def evaluator(limit_s: float) -> Options:
    """Options of one try at scoring. Its own failure returns to the workflow; an outage is retried."""
    return Options(
        start_to_close_timeout=timedelta(seconds=limit_s + MARGIN_S),
        heartbeat_timeout=timedelta(seconds=30),
        retry_policy=_policy(maximum_s=15),
    )


def cell_work(limit_s: float) -> Options:
    """Options of work on one incarnation of a cell. Not retried: the burst must read the cell first."""
    return Options(
        start_to_close_timeout=timedelta(seconds=limit_s),
        schedule_to_start_timeout=timedelta(seconds=30),
        heartbeat_timeout=timedelta(seconds=20),
        retry_policy=RetryPolicy(maximum_attempts=1),
    )


def cell_command() -> Options:
    """Options of an Update to a Cell workflow, whose id is the same on every retry."""
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
