"""Errors of Gyre as Temporal carries them, and back."""

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, ParamSpec, TypeVar, cast

from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    TimeoutError,
)

from gyre.contracts.errors import GyreError

P = ParamSpec("P")
R = TypeVar("R")


def translated(function: Callable[P, R]) -> Callable[P, R]:
    """Make an activity raise ApplicationError for a GyreError: type, sentence, and whether to retry."""
    if iscoroutinefunction(function):

        @wraps(function)
        async def asynchronous(*args: P.args, **kwargs: P.kwargs) -> Any:
            try:
                return await function(*args, **kwargs)
            except GyreError as error:
                raise as_application_error(error) from error

        return cast(Callable[P, R], asynchronous)

    @wraps(function)
    def synchronous(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except GyreError as error:
            raise as_application_error(error) from error

    return synchronous


def as_application_error(error: GyreError) -> ApplicationError:
    return ApplicationError(
        f"{error.boundary}: {error}", type=type(error).__name__, non_retryable=not error.retryable
    )


def sentence(error: ActivityError) -> str:
    """``boundary: what happened`` of a failed activity, short enough for a row and a history."""
    cause = error.cause
    if isinstance(cause, TimeoutError):
        kind = cause.type.name.lower() if cause.type else "unknown"
        return f"temporal: {error.activity_type} timed out ({kind})"
    return str(cause.message if isinstance(cause, ApplicationError) else cause or error)[:500]


def root_sentence(error: FailureError) -> str:
    """The sentence of the activity at the bottom of a failed child, or of whatever is there."""
    while isinstance(error, ChildWorkflowError) and isinstance(error.cause, FailureError):
        error = error.cause
    return sentence(error) if isinstance(error, ActivityError) else str(error)[:500]


def failure_type(error: ActivityError) -> str | None:
    """Class name of the GyreError that failed the activity, None for time-outs and other errors."""
    return error.cause.type if isinstance(error.cause, ApplicationError) else None
