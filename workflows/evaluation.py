"""Score one snapshot, try by try, each visible in the history. The agent is never run again."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from gyre.contracts.ids import evaluate_queue, run_of
    from gyre.contracts.messages import EvaluateInput, EvaluationInput, EvaluationResult
    from gyre.durable import activities, options
    from gyre.durable.calls import call
    from gyre.durable.failures import sentence

BACKOFF_S = 2
"""Pause before the second try; it doubles with every further one."""


@workflow.defn(name="Evaluation")
class Evaluation:
    """A failed evaluator leaves the reward pending, never zero: it is tried again within its budget."""

    @workflow.run
    async def run(self, input: EvaluationInput) -> EvaluationResult:
        failure: str | None = None
        for number in range(1, input.limits.evaluations + 1):
            workflow.set_current_details(f"try {number} of {input.limits.evaluations}")
            try:
                scored = await call(
                    activities.EVALUATE_SNAPSHOT,
                    EvaluateInput(
                        evaluation_id=input.evaluation_id,
                        execution_id=input.execution_id,
                        snapshot_id=input.snapshot_id,
                        number=input.number,
                        try_number=number,
                        limit_s=input.limits.evaluate_s,
                        final=number == input.limits.evaluations,
                    ),
                    queue=evaluate_queue(run_of(input.execution_id)),
                    options=options.evaluator(input.limits.evaluate_s),
                    summary=f"try {number}",
                )
                return EvaluationResult(reward_id=scored.reward_id, reward=scored.reward, num_tries=number)
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                failure = sentence(error)
            if number < input.limits.evaluations:
                await workflow.sleep(
                    timedelta(seconds=BACKOFF_S * 2 ** (number - 1)), summary="before another try"
                )
        return EvaluationResult(
            reward_id=None, reward=None, num_tries=input.limits.evaluations, failure=failure
        )
