"""Child processes of a cell: started by exec, ended by pid, none outlives its incarnation."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from gyre.contracts.errors import GyreError
from gyre.host.processes import exit_with

GRACE_S = 10.0
"""Grace period between SIGTERM and SIGKILL."""


@dataclass
class CellProcess:
    """A running ``python -m module --boot FILE``."""

    name: str
    process: asyncio.subprocess.Process

    async def end(self) -> None:
        """Send SIGTERM, then SIGKILL after the grace period. Returns when the process is gone."""
        if self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), GRACE_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


async def start(name: str, module: str, boot: BaseModel, folder: Path) -> CellProcess:
    """Write the boot file (mode 0600: it carries credentials) and start the module with it as our child."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{name}.json"
    # Created empty first: write_text alone would leave the credentials readable until a chmod.
    path.touch(mode=0o600)
    path.write_text(boot.model_dump_json())
    with (folder / f"{name}.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, "--boot", str(path), "--parent", str(os.getpid()),
            stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    return CellProcess(name, process)


def exit_with_parent(arguments: Sequence[str]) -> None:
    """In a child: exit when the process ends that ``--parent PID`` names, or without it this one's parent.

    The supervisor names itself, because one that is killed while its child imports torch is not the child's
    parent any more.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, default=os.getppid())
    parent: int = parser.parse_known_args(arguments[1:])[0].parent
    if parent > 0:  # 0: the parent is outside this process's pid namespace
        exit_with(parent)


async def first_death(children: Sequence[CellProcess]) -> str:
    """Wait until any child ends. Returns a sentence that says which one and with what code."""
    waits = {asyncio.create_task(child.process.wait()): child for child in children}
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waits:
            task.cancel()
    child = waits[next(iter(done))]
    return f"{child.name} ended with code {child.process.returncode}"


async def alive_until(
    children: Sequence[CellProcess], ready: "asyncio.Future[None] | asyncio.Task[None]", limit_s: float,
    error: type[GyreError],
) -> None:  # fmt: skip
    """Wait until ``ready`` is done. Raises ``error`` if a child ends first or the limit passes."""
    death = asyncio.create_task(first_death(children))
    try:
        done, _ = await asyncio.wait({ready, death}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if ready in done:
            ready.result()
            return
        reason = death.result() if death in done else f"not ready after {limit_s:.0f} s"
        raise error(f"{children[0].name}: {reason}")
    finally:
        death.cancel()
        ready.cancel()
