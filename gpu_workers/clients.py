"""Clients of a supervisor: for its trainer (JSON lines over a Unix socket) and its engine (HTTP)."""

import asyncio
from typing import Any

import httpx

from gyre.contracts.boot import TrainerAnswer, TrainerCommand
from gyre.contracts.engine import EngineInfo, PullWeights, WeightsReference
from gyre.contracts.errors import EngineFailed, TrainerFailed, TrainingImpossible

LINE_LIMIT_BYTES = 1 << 20
RETRY_S = 0.1
"""Pause between attempts to reach a process that is still starting."""


class TrainerClient:
    """Sends one command at a time. The answer to a training command may take hours."""

    def __init__(self, socket: str, epoch: int) -> None:
        self._socket = socket
        self._epoch = epoch
        self._lock = asyncio.Lock()

    async def until_ready(self) -> None:
        """Return once the trainer answers."""
        while True:
            try:
                await self.status()
            except OSError:
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def status(self) -> dict[str, Any]:
        """Return what the trainer holds. It answers while another command runs."""
        return await self._exchange("status", {})

    async def send(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Run a command and return its result.

        Raises TrainerFailed with the trainer's own sentence, or OSError when no trainer listens.
        """
        async with self._lock:
            return await self._exchange(command, arguments)

    async def _exchange(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        reader, writer = await asyncio.open_unix_connection(self._socket, limit=LINE_LIMIT_BYTES)
        try:
            request = TrainerCommand(command=command, epoch=self._epoch, arguments=arguments)
            writer.write(request.model_dump_json().encode() + b"\n")
            await writer.drain()
            line = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            raise TrainerFailed(f"{command}: the trainer ended before answering") from error
        finally:
            writer.close()
        answer = TrainerAnswer.model_validate_json(line)
        if answer.error is not None:
            kind = TrainerFailed if answer.retryable else TrainingImpossible
            raise kind(f"{command}: {answer.error}")
        return answer.result


class EngineClient:
    """Calls the control routes of the engine protocol. Raises EngineFailed with the engine's reason."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(600.0, connect=5.0))

    async def until_ready(self) -> None:
        """Return once the engine is healthy."""
        while True:
            try:
                if (await self._http.get("/health")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(RETRY_S)

    async def info(self) -> EngineInfo:
        return EngineInfo.model_validate(await self._checked("GET", "/get_server_info"))

    async def pull(self, reference: WeightsReference, mode: str, epoch: int) -> dict[str, Any]:
        """Have the engine pull, verify and serve the referenced weights."""
        body = PullWeights.model_validate({"reference": reference, "mode": mode, "epoch": epoch})
        return await self._checked("POST", "/pull_weights", body.model_dump(mode="json"))

    async def control(self, route: str) -> None:
        """Call a route that takes no arguments."""
        await self._checked("POST", route, {})

    async def close(self) -> None:
        await self._http.aclose()

    async def _checked(self, method: str, route: str, body: Any = None) -> dict[str, Any]:
        try:
            response = await self._http.request(method, route, json=body)
        except httpx.TransportError as error:
            raise EngineFailed(f"{route}: {error!r}") from error
        if response.status_code != 200:
            raise EngineFailed(f"{route}: {response.status_code} {response.text[:300]}")
        return response.json() if response.content else {}
