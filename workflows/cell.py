"""The entity workflow of one cell: serializes its role changes and refuses those that do not fit."""

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

MAX_SEEN = 64
"""Commands remembered across continue-as-new: more than can be in flight or retried at once."""
SWITCH_LIMIT_S = 600.0
"""Time limit of one role change."""

PATHS = {
    (CellRole.ROLLOUT, CellRole.TRAINING): (CellRole.DRAINING, CellRole.LOADING, CellRole.TRAINING),
    (CellRole.TRAINING, CellRole.ROLLOUT): (CellRole.RETURNING, CellRole.ROLLOUT),
    (CellRole.DRAINING, CellRole.TRAINING): (CellRole.LOADING, CellRole.TRAINING),
    (CellRole.LOADING, CellRole.TRAINING): (CellRole.TRAINING,),
    (CellRole.RETURNING, CellRole.ROLLOUT): (CellRole.ROLLOUT,),
}
"""Steps from one resting role to the other, also from where an interrupted change stopped."""


@workflow.defn(name="Cell")
class Cell:
    """Runs until its run ends and cancels it; continues as new when its history grows."""

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
        """Take the cell to a role, step by step. A repeated command id gets the first answer again."""
        async with self._lock:
            if input.command_id not in self._seen:
                state = await self._walk(input)
                self._seen = dict([*self._seen.items(), (input.command_id, state)][-MAX_SEEN:])
            return self._seen[input.command_id]

    @command.validator
    def check(self, input: CellCommand) -> None:
        """Refuse unknown paths, and commands during continue-as-new, before anything is recorded."""
        if self._leaving:
            raise ApplicationError("the cell is continuing as new: send the command again", type="Busy")
        if (input.from_role, input.to_role) not in PATHS:
            raise ApplicationError(
                f"a cell cannot be taken from {input.from_role} to {input.to_role}",
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
