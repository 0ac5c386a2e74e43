"""Bursts and role changes on a cell that fails: they continue from durable state, or fail for a reason."""

from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError

from gyre.contracts import ids
from gyre.contracts.errors import CellRefused, EngineFailed, TrainerFailed, TrainingImpossible
from gyre.contracts.lifecycle import CellRole
from gyre.contracts.messages import (
    BurstInput,
    BurstResult,
    CellCommand,
    CellInput,
    CellState,
    OpenBatchResult,
    PublishResult,
    TrainResult,
)
from gyre.durable import activities as names
from gyre.durable.failures import as_application_error
from tests.workflows.conftest import Script


def state(script: Script, role: CellRole, *, epoch: int = 1, version: int = 0) -> CellState:
    return CellState(cell_id=ids.cell_id(script.run, 0), role=role, epoch=epoch, version=version)


def ready(script: Script) -> None:
    """Make every activity succeed."""
    script.on(names.AWAIT_CELL, state(script, CellRole.ROLLOUT))
    script.on(names.COMMAND_CELL, lambda input, _: state(script, input.to_role, epoch=input.epoch))
    opened = OpenBatchResult(batch_id="b", num_executions=4, num_trajectories=4, num_targets=9)
    script.on(names.OPEN_BATCH, opened)
    script.on(
        names.TRAIN_BATCH,
        lambda input, _: TrainResult(version=input.version, loss=0, grad_norm=1, seconds=1),
    )
    script.on(
        names.PUBLISH_WEIGHTS, lambda input, _: PublishResult(version=input.version, num_bytes=1, seconds=1)
    )


def burst(script: Script, *epochs: int, updates: int = 2) -> BurstResult:
    async def scene(client: Client) -> Any:
        cell = ids.cell_id(script.run, 0)
        input = BurstInput(run=script.run, version=0, num_updates=updates, cell_id=cell)
        return await client.execute_workflow(
            "TrainingBurst",
            input,
            id=ids.burst_id(script.run, 0),
            task_queue=ids.control_queue(script.run),
            result_type=BurstResult,
        )

    return script.play(scene, *epochs)


def test_a_burst_updates_and_then_publishes_once(script: Script) -> None:
    ready(script)
    assert burst(script, 1).version == 2
    assert [input.version for input in script.of(names.TRAIN_BATCH)] == [1, 2]
    assert [input.version for input in script.of(names.PUBLISH_WEIGHTS)] == [2]
    assert [input.to_role for input in script.of(names.COMMAND_CELL)] == [
        CellRole.TRAINING,
        CellRole.ROLLOUT,
    ]


def test_a_failed_role_change_is_repeated_under_another_id(script: Script) -> None:
    """A run hung after a failed role change: Temporal answers a repeated Update id with the old failure."""
    ready(script)
    good = script.answer_to(names.COMMAND_CELL)
    refused = as_application_error(CellRefused("S3 was away"))
    script.on(names.COMMAND_CELL, lambda input, number: refused if number == 1 else good(input, number))
    assert burst(script, 1, updates=1).version == 1
    asked = [input.command_id for input in script.of(names.COMMAND_CELL)]
    assert len(set(asked)) == len(asked) == 3


def test_a_burst_continues_on_the_next_incarnation_of_its_cell(script: Script) -> None:
    ready(script)
    script.on(
        names.AWAIT_CELL, lambda _, number: state(script, CellRole.ROLLOUT, epoch=number, version=number - 1)
    )
    good = script.answer_to(names.TRAIN_BATCH)
    dead = as_application_error(TrainerFailed("the trainer ended"))
    script.on(names.TRAIN_BATCH, lambda input, number: dead if number == 2 else good(input, number))
    assert burst(script, 1, 2).version == 2
    assert [(input.epoch, input.version) for input in script.of(names.TRAIN_BATCH)] == [
        (1, 1),
        (1, 2),
        (2, 2),
    ]


def test_a_batch_that_cannot_be_trained_fails_the_burst_at_once(script: Script) -> None:
    ready(script)
    script.on(names.TRAIN_BATCH, as_application_error(TrainingImpossible("the gradient norm is nan")))
    with pytest.raises(WorkflowFailureError):
        burst(script, 1)
    assert len(script.of(names.TRAIN_BATCH)) == 1


def test_a_cell_enters_every_role_on_the_way_and_answers_a_repeated_command(script: Script) -> None:
    script.on(names.ENTER_ROLE, lambda input, _: state(script, input.to_role))
    cell = ids.cell_id(script.run, 0)
    command = CellCommand(
        command_id="c1", cell_id=cell, epoch=1, from_role=CellRole.ROLLOUT, to_role=CellRole.TRAINING
    )

    async def scene(client: Client) -> None:
        handle = await client.start_workflow(
            "Cell", CellInput(cell_id=cell), id=cell, task_queue=ids.control_queue(script.run)
        )
        for _ in range(2):
            answer = await handle.execute_update("command", command, result_type=CellState)
            assert answer.role == CellRole.TRAINING
        wrong = command.model_copy(update={"command_id": "c2", "to_role": CellRole.LOST})
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update("command", wrong)
        await handle.cancel()

    script.play(scene, 1)
    assert [input.to_role for input in script.of(names.ENTER_ROLE)] == [
        CellRole.DRAINING,
        CellRole.LOADING,
        CellRole.TRAINING,
    ]


def test_a_failed_step_fails_the_command_but_not_the_cell(script: Script) -> None:
    script.on(
        names.ENTER_ROLE,
        lambda input, number: (
            as_application_error(EngineFailed("no answer")) if number == 2 else state(script, input.to_role)
        ),
    )
    cell = ids.cell_id(script.run, 0)

    async def scene(client: Client) -> None:
        handle = await client.start_workflow(
            "Cell", CellInput(cell_id=cell), id=cell, task_queue=ids.control_queue(script.run)
        )
        command = CellCommand(
            command_id="a", cell_id=cell, epoch=1, from_role=CellRole.ROLLOUT, to_role=CellRole.TRAINING
        )
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update("command", command)
        again = command.model_copy(update={"command_id": "b", "from_role": CellRole.DRAINING})
        assert (await handle.execute_update("command", again, result_type=CellState)).role == "training"
        await handle.cancel()

    script.play(scene, 1)
