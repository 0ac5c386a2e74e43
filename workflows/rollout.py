"""One execution of one task: attempt by attempt to exactly one disposition."""

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from gyre.contracts.ids import (
        ExecutionId,
        evaluation_id,
        host_queue,
        host_short_queue,
        run_of,
        short_queue,
    )
    from gyre.contracts.lifecycle import EndReason
    from gyre.contracts.messages import (
        AttemptInput,
        AttemptState,
        EvaluationInput,
        EvaluationResult,
        FoldInput,
        HarnessInput,
        HarnessResult,
        OpenAttemptInput,
        RolloutInput,
        RolloutResult,
        SealInput,
        SnapshotInput,
        SnapshotResult,
    )
    from gyre.durable import activities, options
    from gyre.durable.calls import call, label
    from gyre.durable.client import DISPOSITION, REWARD, RUN, STAGE
    from gyre.durable.failures import sentence
    from gyre.rules.dispositions import AttemptOutcome, attempt_outcome, ending
    from workflows.evaluation import Evaluation

LABELLED_STAGES = ("harness", "evaluate")
"""Stages set as search attribute: only those that last are worth the event that each update costs."""
PROVISION_TRIES = 3
SEAL_S = 30.0
"""Time limit for ending a process group and checking that it is gone."""


@workflow.defn(name="Rollout")
class Rollout:
    """provision -> run harness -> seal -> snapshot -> evaluate -> fold; can be resumed at any stage."""

    @workflow.init
    def __init__(self, input: RolloutInput) -> None:
        self._input = input
        self._run = run_of(input.execution_id)
        self._spent_s = 0.0
        """Time of harnesses, all attempts together: time without a worker is on nobody's budget."""
        self._stage = "start"
        self._milestones: list[str] = []
        self._failure: str | None = None
        """One sentence on the newest failure."""
        self._worked = False
        """Whether some attempt's harness ran to its end."""
        self._snapshot: str | None = None
        self._next_evaluation = 1

    @workflow.signal
    def milestone(self, text: str) -> None:
        """Show the harness's progress, which ``run_harness`` sends once per minute at most."""
        self._milestones = [*self._milestones[-9:], text]
        self._show()

    @workflow.run
    async def run(self, input: RolloutInput) -> RolloutResult:
        """Run attempts until one leaves a snapshot or a budget is used up; score the snapshot; fold."""
        while self._snapshot is None:
            if self._left_s() <= 0:
                self._failure = self._failure or "the total time budget is used up"
                break
            state = await self._open_attempt()
            if state.stage == "terminal":
                return await self._fold(FoldInput(execution_id=input.execution_id, disposition=None))
            if state.stage == "exhausted":
                self._failure = self._failure or state.failure
                self._worked = self._worked or state.worked
                break
            await self._resume(state)
        scored = await self._evaluate(self._snapshot) if self._snapshot else None
        reward = scored.reward_id if scored else None
        end = ending(
            worked=self._worked,
            snapshot=self._snapshot is not None,
            reward_valid=reward is not None,
            failure=self._failure,
        )
        return await self._fold(
            FoldInput(
                execution_id=input.execution_id,
                disposition=end.disposition,
                reward_id=reward,
                detail=end.detail,
            )
        )

    async def _open_attempt(self) -> AttemptState:
        input = self._input
        return await call(
            activities.OPEN_ATTEMPT,
            OpenAttemptInput(
                execution_id=input.execution_id, host=input.host, max_attempts=input.limits.attempts
            ),
            queue=short_queue(self._run),
            options=options.database(),
        )

    async def _resume(self, state: AttemptState) -> None:
        """Bring one attempt from its first unfinished stage to a saved snapshot, or to a failure."""
        if state.stage == "evaluate":
            self._worked, self._snapshot = True, state.snapshot_id
            self._next_evaluation = state.next_evaluation
            return
        if state.stage == "provision":
            ended = await self._work(state.attempt_id)
            if ended is None or not await self._seal(state.attempt_id, ended):
                return
        self._worked = True
        self._snapshot = await self._capture(state.attempt_id)

    async def _work(self, attempt: str) -> HarnessResult | None:
        """Provision and run the harness. Return None if the attempt failed; it is sealed then."""
        limits = self._input.limits
        reason, began = EndReason.PROVISION_FAILED, workflow.now()
        try:
            self._enter("provision")
            await call(
                activities.PROVISION_WORKSPACE,
                AttemptInput(attempt_id=attempt, limit_s=limits.provision_s),
                queue=host_short_queue(self._run, self._input.host),
                options=options.stage(limits.provision_s, attempts=PROVISION_TRIES),
            )
            reason = EndReason.SANDBOX_LOST
            self._enter("harness")
            limit_s = min(limits.harness_s, max(1.0, self._left_s()))
            ended = await call(
                activities.RUN_HARNESS,
                HarnessInput(attempt_id=attempt, limit_s=limit_s),
                queue=host_queue(self._run, self._input.host),
                options=options.harness(limit_s),
            )
            self._spent_s += ended.seconds
            return ended
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._spent_s += (workflow.now() - began).total_seconds()
            self._failure = sentence(error)
            await self._seal_failed(attempt, reason)
            return None

    async def _seal(self, attempt: str, ended: HarnessResult) -> bool:
        """Seal the attempt and return whether its work is worth scoring."""
        self._enter("seal")
        sealed = await call(
            activities.SEAL_ATTEMPT,
            SealInput(attempt_id=attempt, end_reason=ended.end_reason, exit_code=ended.exit_code),
            queue=host_short_queue(self._run, self._input.host),
            options=options.stage(SEAL_S),
        )
        outcome = attempt_outcome(ended.end_reason, ended.exit_code, sealed.num_calls)
        if outcome is AttemptOutcome.EVALUATE:
            return True
        reason = ended.failure or f"{ended.end_reason}, exit code {ended.exit_code}"
        self._failure = f"harness: {reason}, after {sealed.num_calls} model calls"
        await self._seal_failed(attempt, ended.end_reason)
        return False

    async def _seal_failed(self, attempt: str, reason: EndReason) -> None:
        """Seal the attempt with its failure, so that it counts towards the budget."""
        await call(
            activities.SEAL_ATTEMPT,
            SealInput(attempt_id=attempt, end_reason=reason, failure=self._failure),
            queue=host_short_queue(self._run, self._input.host),
            options=options.stage(SEAL_S),
        )

    async def _capture(self, attempt: str) -> str | None:
        """Save the workspace. Return None if that is impossible; the attempt counts as failed then."""
        limit_s = self._input.limits.snapshot_s
        self._enter("snapshot")
        try:
            taken: SnapshotResult = await call(
                activities.TAKE_SNAPSHOT,
                SnapshotInput(attempt_id=attempt, limit_s=limit_s),
                queue=host_short_queue(self._run, self._input.host),
                options=options.stage(limit_s),
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._failure = sentence(error)
            await self._seal_failed(attempt, EndReason.SANDBOX_LOST)
            return None
        return taken.snapshot_id

    async def _evaluate(self, snapshot: str) -> EvaluationResult:
        """Score the snapshot in a child workflow, so that evaluators fail without a new attempt."""
        self._enter("evaluate")
        execution, number = ExecutionId(self._input.execution_id), self._next_evaluation
        name = evaluation_id(execution, number)
        result: EvaluationResult = await workflow.execute_child_workflow(
            Evaluation.run,
            EvaluationInput(
                evaluation_id=name,
                execution_id=execution,
                snapshot_id=snapshot,
                number=number,
                limits=self._input.limits,
            ),
            id=name,
            static_summary=f"score {snapshot}",
            search_attributes=TypedSearchAttributes([SearchAttributePair(RUN, self._run)]),
        )
        self._failure = result.failure
        return result

    async def _fold(self, outcome: FoldInput) -> RolloutResult:
        """Commit the outcome, or read the committed one, and label this workflow with it."""
        self._enter("fold")
        result = await call(
            activities.FOLD_EXECUTION, outcome, queue=short_queue(self._run), options=options.database()
        )
        reward = [] if result.reward is None else [REWARD.value_set(result.reward)]
        label(STAGE.value_set("done"), DISPOSITION.value_set(result.disposition), *reward)
        return result

    def _left_s(self) -> float:
        return self._input.limits.total_s - self._spent_s

    def _enter(self, stage: str) -> None:
        self._stage = stage
        if stage in LABELLED_STAGES:
            label(STAGE.value_set(stage))
        self._show()

    def _show(self) -> None:
        workflow.set_current_details("\n".join([f"stage: {self._stage}", *self._milestones]))
