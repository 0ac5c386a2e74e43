"""Executions and groups in Postgres: take up, fold, settle."""

from dataclasses import dataclass

from temporalio import activity

from db import executions, groups, waits
from db.session import Database, transaction
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
    """Short transactions on ``<run>/short``."""

    database: Database

    @activity.defn(name=OPEN_ATTEMPT.name)
    @translated
    def open_attempt(self, input: OpenAttemptInput) -> AttemptState:
        """The stage at which to take the execution up; opens an attempt when one is due."""
        with transaction(self.database) as session:
            execution = ExecutionId(input.execution_id)
            return executions.resume_point(session, execution, input.host, input.max_attempts)

    @activity.defn(name=FOLD_EXECUTION.name)
    @translated
    def fold_execution(self, input: FoldInput) -> RolloutResult:
        """Commit the disposition and say what was committed, which on a repeat is the first."""
        execution = ExecutionId(input.execution_id)
        with transaction(self.database) as session:
            row = executions.fold(
                session,
                execution,
                input.disposition,
                reward=input.reward_id,
                detail=input.detail,
            )
            totals = executions.execution_totals(session, execution)
            waits.end(session, owner=execution)
            return RolloutResult(
                disposition=Disposition(row.disposition or input.disposition),
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
        """Settle the group from its executions' rows."""
        with transaction(self.database) as session:
            row, found = groups.commit_outcome(session, GroupId(input.group_id))
            return QueryGroupResult(
                status=row.status,
                scored=found.count(Disposition.SCORED),
                placeholder=found.count(Disposition.PLACEHOLDER),
                excluded=found.count(Disposition.EXCLUDED),
            )
