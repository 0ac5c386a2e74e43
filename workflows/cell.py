"""The entity of one cell: it serialises role changes and refuses what does not fit."""

import asyncio
from typing import NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from gyre.contracts.ids import CellId, cell_queue
    from gyre.contracts.lifecycle import CellRole
    from gyre.contracts.messages import CellCommand, CellInput, CellState
    from gyre.durable import activities, options
    from gyre.durable.calls import call
    from gyre.durable.failures import sentence

SEEN = 64
"""Commands remembered over continue-as-new: more than can be in flight or retried at once."""
SWITCH_LIMIT_S = 600.0

PATHS = {
    (CellRole.ROLLOUT, CellRole.TRAINING): (CellRole.DRAINING, CellRole.LOADING, CellRole.TRAINING),
    (CellRole.TRAINING, CellRole.ROLLOUT): (CellRole.RETURNING, CellRole.ROLLOUT),
    (CellRole.DRAINING, CellRole.TRAINING): (CellRole.LOADING, CellRole.TRAINING),
    (CellRole.LOADING, CellRole.TRAINING): (CellRole.TRAINING,),
    (CellRole.RETURNING, CellRole.ROLLOUT): (CellRole.ROLLOUT,),
}
"""The steps from one resting role to the other, taken up wherever an interrupted one stopped."""


@workflow.defn(name="Cell")
class Cell:
    """Runs until it is cancelled with its run; continues as new when its history grows."""

    @workflow.init
    def __init__(self, input: CellInput) -> None:
        self._cell = CellId(input.cell_id)
        self._seen = dict(input.seen)
        self._lock = asyncio.Lock()
        self._leaving = False

    @workflow.run
    async def run(self, input: CellInput) -> NoReturn:
        await workflow.wait_condition(workflow.info().is_continue_as_new_suggested)
        self._leaving = True
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(CellInput(cell_id=self._cell, seen=self._seen))

    @workflow.update
    async def command(self, input: CellCommand) -> CellState:
        """Take the cell to a role, step by step. The same command id gives the same answer."""
        async with self._lock:
            if input.command_id not in self._seen:
                state = await self._walk(input)
                self._seen = dict([*self._seen.items(), (input.command_id, state)][-SEEN:])
            return self._seen[input.command_id]

    @command.validator
    def check(self, input: CellCommand) -> None:
        """Refuse before anything is recorded: unknown paths, and commands while it continues as new."""
        if self._leaving:
            raise ApplicationError("the cell continues as new; send the command again", type="Busy")
        if (input.from_role, input.to_role) not in PATHS:
            raise ApplicationError(
                f"no way from {input.from_role} to {input.to_role}",
                type="IllegalTransition",
                non_retryable=True,
            )

    async def _walk(self, input: CellCommand) -> CellState:
        role, state = input.from_role, None
        for step in PATHS[(input.from_role, input.to_role)]:
            workflow.set_current_details(f"{role} -> {step} (epoch {input.epoch})")
            command = input.model_copy(
                update={"command_id": f"{input.command_id}/{step}", "from_role": role, "to_role": step}
            )
            try:
                state = await call(
                    activities.ENTER_ROLE,
                    command,
                    queue=cell_queue(self._cell, input.epoch),
                    options=options.cell_work(SWITCH_LIMIT_S),
                    summary=f"{role} -> {step}",
                )
            except ActivityError as error:
                raise ApplicationError(sentence(error), type="CellLost", non_retryable=True) from error
            if state.role is not step:
                raise ApplicationError(
                    f"{self._cell} is in {state.role}, not {step}", type="CellLost", non_retryable=True
                )
            role = step
        assert state is not None
        workflow.set_current_details(f"{role} (epoch {input.epoch})")
        return state
