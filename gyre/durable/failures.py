"""Mapping of Gyre's errors to Temporal's, and of Temporal's to sentences."""

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
    """Make an activity raise ApplicationError for a GyreError, with its type, sentence and retryability."""
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
    """Translate an error for Temporal."""
    return ApplicationError(
        f"{error.boundary}: {error}", type=type(error).__name__, non_retryable=not error.retryable
    )


def sentence(error: ActivityError) -> str:
    """Return ``boundary: what happened`` for a failed activity, short enough for a row and a history."""
    cause = error.cause
    if isinstance(cause, TimeoutError):
        kind = cause.type.name.lower() if cause.type else "unknown"
        return f"temporal: {error.activity_type} timed out ({kind})"
    return str(cause.message if isinstance(cause, ApplicationError) else cause or error)[:500]


def root_sentence(error: FailureError) -> str:
    """Return the sentence of the activity that failed a child workflow, or of whatever else failed it."""
    while isinstance(error, ChildWorkflowError) and isinstance(error.cause, FailureError):
        error = error.cause
    return sentence(error) if isinstance(error, ActivityError) else str(error)[:500]


def failure_type(error: ActivityError) -> str | None:
    """Return the class name of the GyreError that failed the activity; None for other errors."""
    return error.cause.type if isinstance(error.cause, ApplicationError) else None
