"""Executions and groups in Postgres: resume, fold, settle."""

from dataclasses import dataclass

from temporalio import activity

from db import executions, groups
from db.models import ExecutionRow
from db.session import Database, transaction
from gyre.contracts.errors import IllegalTransition
from gyre.contracts.ids import ExecutionId, GroupId
from gyre.contracts.lifecycle import Disposition
from gyre.contracts.messages import (
    AttemptState,
    FoldInput,
    GroupRef,
    OpenAttemptInput,
    QueryGroupResult,
    RolloutResult,
)
from gyre.durable.activities import COMMIT_GROUP, FOLD_EXECUTION, OPEN_ATTEMPT
from gyre.durable.failures import translated


@dataclass(frozen=True)
class ExecutionActivities:
    """Short transactions, on ``<run>/short``."""

    database: Database

    @activity.defn(name=OPEN_ATTEMPT.name)
    @translated
    def open_attempt(self, input: OpenAttemptInput) -> AttemptState:
        """Return the stage at which to resume the execution; open its next attempt when one is due."""
        with transaction(self.database) as session:
            execution = ExecutionId(input.execution_id)
            return executions.resume_point(session, execution, input.host, input.max_attempts)

    @activity.defn(name=FOLD_EXECUTION.name)
    @translated
    def fold_execution(self, input: FoldInput) -> RolloutResult:
        """Commit the disposition and return what is committed: the first one, if this is a repeat.

        Without a disposition, only read. Raises IllegalTransition if there is nothing committed to read.
        """
        execution = ExecutionId(input.execution_id)
        with transaction(self.database) as session:
            if input.disposition is None:
                row = session.get_one(ExecutionRow, execution)
            else:
                row = executions.fold(
                    session, execution, input.disposition, reward=input.reward_id, detail=input.detail
                )
            if row.disposition is None:
                raise IllegalTransition(f"{execution} is {row.status}: it has no disposition yet")
            totals = executions.execution_totals(session, execution)
            return RolloutResult(
                disposition=Disposition(row.disposition),
                reward=executions.reward_value(session, row.reward_id),
                num_attempts=executions.num_attempts(session, execution),
                num_calls=totals.num_calls,
                num_output_tokens=totals.num_output_tokens,
                num_evaluations=executions.num_evaluations(session, execution),
                detail=row.detail,
            )

    @activity.defn(name=COMMIT_GROUP.name)
    @translated
    def commit_group(self, input: GroupRef) -> QueryGroupResult:
        """Settle the group by its executions' rows and return the outcome."""
        with transaction(self.database) as session:
            row, found = groups.commit_outcome(session, GroupId(input.group_id))
            return QueryGroupResult(
                status=row.status,
                scored=found.count(Disposition.SCORED),
                placeholder=found.count(Disposition.PLACEHOLDER),
                excluded=found.count(Disposition.EXCLUDED),
            )
