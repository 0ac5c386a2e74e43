"""Consecutive updates between two publications, on a cell that may fail at any moment."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from gyre.contracts.ids import CellId, RunId, batch_id, cell_queue, control_queue, short_queue
    from gyre.contracts.lifecycle import CellRole
    from gyre.contracts.messages import (
        BurstInput,
        BurstResult,
        CellCommand,
        CellRef,
        CellState,
        OpenBatchInput,
        PublishInput,
        TrainInput,
    )
    from gyre.durable import activities, options
    from gyre.durable.calls import call
    from gyre.durable.failures import failure_type, sentence

TRAIN_LIMIT_S = 24 * 3600.0
PUBLISH_LIMIT_S = 900.0
MAX_TRIES = 10
"""Tries of one burst, on one or more incarnations of the cell, before the burst and its run fail."""
LONGEST_PAUSE_S = 30
"""Limit of the pause between tries, which doubles."""
HOPELESS = {"BadInput", "TrainingImpossible"}
"""Types of failures that another try would only repeat."""


@workflow.defn(name="TrainingBurst")
class TrainingBurst:
    """open batch -> train, mu times, then publish. Every step is safe to repeat after a crash."""

    @workflow.init
    def __init__(self, input: BurstInput) -> None:
        self._input = input
        self._version = input.version
        self._failure = ""
        self._try = 0

    @workflow.run
    async def run(self, input: BurstInput) -> BurstResult:
        target = input.version + input.num_updates
        for number in range(MAX_TRIES):
            self._try = number
            if number > 0:
                pause_s = min(2 ** (number - 1), LONGEST_PAUSE_S)
                await workflow.sleep(timedelta(seconds=pause_s), summary="before another try")
            cell = await self._await_cell()
            try:
                return await self._finish(cell, target)
            except ActivityError as error:
                if is_cancelled_exception(error) or failure_type(error) in HOPELESS:
                    raise
                self._failure = sentence(error)
                workflow.logger.warning("the burst is tried again: %s", self._failure)
        raise ApplicationError(
            f"{input.cell_id} failed {MAX_TRIES} times in one burst; last: {self._failure}",
            type="TrainerFailed",
            non_retryable=True,
        )

    async def _finish(self, cell: CellState, target: int) -> BurstResult:
        """Do what is left of the burst, on one incarnation of the cell."""
        while self._version < target:
            if not await self._open_batch(self._version + 1):
                break
            if cell.role is not CellRole.TRAINING:
                cell = await self._take_to_role(cell, CellRole.TRAINING)
            await self._train(cell)
            self._version += 1
        if cell.version < self._version:
            await self._publish(cell)
        if cell.role is not CellRole.ROLLOUT:
            await self._take_to_role(cell, CellRole.ROLLOUT)
        return BurstResult(version=self._version)

    async def _await_cell(self) -> CellState:
        return await call(
            activities.AWAIT_CELL,
            CellRef(cell_id=self._input.cell_id),
            queue=control_queue(RunId(self._input.run)),
            options=options.decision(),
            summary="until the cell serves",
        )

    async def _open_batch(self, version: int) -> bool:
        """Open the batch that makes ``version``. Return False if too few groups are ready."""
        opened = await call(
            activities.OPEN_BATCH,
            OpenBatchInput(run=self._input.run, version=version),
            queue=short_queue(RunId(self._input.run)),
            options=options.database(),
            summary=f"batch {version}",
        )
        return opened.batch_id is not None

    async def _take_to_role(self, cell: CellState, to_role: CellRole) -> CellState:
        command = CellCommand(
            # The try is part of the id: Temporal answers a repeated Update id with the first answer.
            command_id=f"{cell.cell_id}/{cell.epoch}/{self._version}/{cell.role}-{to_role}/{self._try}",
            cell_id=cell.cell_id,
            epoch=cell.epoch,
            from_role=cell.role,
            to_role=to_role,
            version=self._version,
        )
        return await call(
            activities.COMMAND_CELL,
            command,
            queue=control_queue(RunId(self._input.run)),
            options=options.cell_command(),
            summary=f"{cell.role} -> {to_role}",
        )

    async def _train(self, cell: CellState) -> None:
        version = self._version + 1
        workflow.set_current_details(f"training version {version}")
        await call(
            activities.TRAIN_BATCH,
            TrainInput(
                cell_id=cell.cell_id,
                epoch=cell.epoch,
                batch_id=batch_id(RunId(self._input.run), version),
                version=version,
            ),
            queue=cell_queue(CellId(cell.cell_id), cell.epoch),
            options=options.cell_work(TRAIN_LIMIT_S),
            summary=f"update {version}",
        )

    async def _publish(self, cell: CellState) -> None:
        workflow.set_current_details(f"publishing version {self._version}")
        await call(
            activities.PUBLISH_WEIGHTS,
            PublishInput(cell_id=cell.cell_id, epoch=cell.epoch, version=self._version),
            queue=cell_queue(CellId(cell.cell_id), cell.epoch),
            options=options.cell_work(PUBLISH_LIMIT_S),
            summary=f"version {self._version}",
        )
