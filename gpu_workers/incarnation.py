"""One incarnation of a cell: from the minting of an epoch to the first death among its processes."""

import asyncio
import time
from pathlib import Path
from typing import Any

from db import cells, run_state, waits
from db.session import Database, transaction
from gpu_workers.children import CellProcess, alive_until, start
from gpu_workers.clients import EngineClient, TrainerClient
from gyre.contracts.boot import CellBoot, EngineBoot, TrainerBoot
from gyre.contracts.engine import WeightsReference
from gyre.contracts.errors import EngineFailed, TrainerFailed
from gyre.contracts.ids import CellId
from gyre.contracts.lifecycle import CellRole
from gyre.contracts.messages import (
    CellCommand,
    PublishInput,
    PublishResult,
    TrainInput,
    TrainResult,
)
from gyre.host.ports import HOST, choose_port
from gyre.settings import RunFile

START_LIMIT_S = 300.0
"""Longest start of a process: importing torch and reading the weights of a large model take minutes."""
DRAIN_LIMIT_S = 600.0


class CellIncarnation:
    """The engine and the trainer of one epoch. Commands of other epochs never reach them."""

    def __init__(self, boot: CellBoot, config: RunFile, database: Database, epoch: int) -> None:
        self.epoch = epoch
        self.children: list[CellProcess] = []
        self._boot, self._config, self._database = boot, config, database
        self._cell = CellId(boot.cell)
        self._folder = Path(boot.state_dir) / "cells" / boot.cell.rsplit("/", 1)[1]
        self._url = f"http://{HOST}:{boot.engine_port}"
        self._engine = EngineClient(self._url)
        self._trainer = TrainerClient(str(self._folder / f"trainer-{epoch}.sock"), epoch)

    async def begin(self) -> None:
        """Start both processes, bring them to the newest version, and serve."""
        await self._start_engine()
        await self._start_trainer()
        version = await asyncio.to_thread(self._newest_version)
        await self._trainer.send("load", version=version)
        moved = await self._move_weights(version) if version > 0 else None
        await asyncio.to_thread(self._serve, version, moved["num_bytes"] if moved else None)

    async def end(self) -> None:
        """End every process of this incarnation. Returns when they are gone."""
        await self._engine.close()
        await asyncio.gather(*(child.end() for child in self.children))

    async def answers(self, limit_s: float) -> bool:
        """Return whether both processes answer a status request in time, even while training."""
        try:
            async with asyncio.timeout(limit_s):
                await self._engine.info()
                await self._trainer.status()
        except (EngineFailed, TrainerFailed, OSError, TimeoutError):
            return False
        return True

    async def enter(self, command: CellCommand) -> None:
        """Bring the two processes into the state that the role needs. Idempotent."""
        if command.to_role is CellRole.DRAINING:
            await self._until_drained()
        elif command.to_role is CellRole.LOADING:
            await self._engine.control("/release_memory_occupation")
            await self._hold(command.version)
        elif command.to_role is CellRole.RETURNING:
            await self._engine.control("/resume_memory_occupation")

    async def train(self, input: TrainInput) -> TrainResult:
        """Train the stored batch, starting from the previous version."""
        # A version that is durable already is only read back, whatever the trainer holds.
        if await asyncio.to_thread(self._newest_version) < input.version:
            await self._hold(input.version - 1)
        answer = await self._trainer.send("train", batch_id=input.batch_id)
        metrics: dict[str, Any] = answer["metrics"]
        return TrainResult(
            version=answer["version"],
            loss=float(metrics.get("loss", 0.0)),
            grad_norm=float(metrics.get("grad_norm", 0.0)),
            seconds=sum(metrics.get("seconds", {}).values()),
        )

    async def publish(self, input: PublishInput) -> PublishResult:
        """Expose the version, have the engine pull and verify it, then free the exposed copy."""
        await self._hold(input.version)
        answer = await self._move_weights(input.version)
        return PublishResult(
            version=answer["version"], num_bytes=answer["num_bytes"], seconds=answer["seconds"]
        )

    async def _move_weights(self, version: int) -> dict[str, Any]:
        exposed = await self._trainer.send("publish", version=version)
        reference = WeightsReference.model_validate(exposed["reference"])
        try:
            return await self._engine.pull(reference, self._config.cells.publish, self.epoch)
        finally:
            await self._trainer.send("release", version=version)

    async def _hold(self, version: int) -> None:
        """Have the trainer hold exactly this version, reloading it if a crash left another one."""
        if (await self._trainer.status())["version"] != version:
            await self._trainer.send("load", version=version)

    async def _until_drained(self) -> None:
        """Wait until no request runs. The capacity rule leaves only the last calls of ending harnesses."""
        deadline = time.monotonic() + DRAIN_LIMIT_S
        while (running := (await self._engine.info()).num_running) > 0:
            if time.monotonic() > deadline:
                raise EngineFailed(f"{running} requests still run {DRAIN_LIMIT_S:.0f} s after draining began")
            await asyncio.sleep(0.05)

    async def _start_engine(self) -> None:
        cells_section = self._config.cells
        boot = EngineBoot(
            model_path=str(self._config.model.path),
            port=self._boot.engine_port,
            epoch=self.epoch,
            dtype=self._config.model.dtype,
            device=cells_section.device,
            context_tokens=self._config.model.context_tokens,
            max_batch=cells_section.engine_max_batch,
        )
        child = await start("engine", "gpu_workers.engine", boot, self._folder)
        self.children.append(child)
        await alive_until(
            [child], asyncio.create_task(self._engine.until_ready()), START_LIMIT_S, EngineFailed
        )

    async def _start_trainer(self) -> None:
        section = self._config.cells
        world = section.data_parallel * section.tensor_parallel
        rendezvous = f"{HOST}:{choose_port({self._boot.engine_port})}" if world > 1 else ""
        ranks = [
            await start(f"trainer-{rank}", "gpu_workers.trainer", self._trainer_boot(rank, world, rendezvous),
                        self._folder)
            for rank in range(world)
        ]  # fmt: skip
        self.children += ranks
        await alive_until(
            ranks, asyncio.create_task(self._trainer.until_ready()), START_LIMIT_S, TrainerFailed
        )

    def _trainer_boot(self, rank: int, world: int, rendezvous: str) -> TrainerBoot:
        common = self._boot.model_dump(include={"run", "services", "state_dir", "host"})
        return TrainerBoot(
            **common,
            cell=self._boot.cell,
            epoch=self.epoch,
            socket=str(self._folder / f"trainer-{self.epoch}.sock"),
            rank=rank,
            world_size=world,
            rendezvous=rendezvous,
        )

    def _newest_version(self) -> int:
        with transaction(self._database) as session:
            return run_state.newest_version(session, self._boot.run)

    def _serve(self, version: int, pulled_bytes: int | None) -> None:
        """Record that this incarnation serves, and the publication if a crash left it unrecorded."""
        with transaction(self._database) as session:
            cells.begin_serving(session, self._cell, self.epoch, self._url, version)
            waits.end(session, owner=self._cell)
            if pulled_bytes is not None:
                run_state.mark_published(session, self._boot.run, version, pulled_bytes)
