"""The router and the engine client: one call becomes one list of sampled tokens, whatever happens to cells.

An aborted request continues from ``input_ids + sampled so far`` on the next cell; a failed one starts
again with the same seed, so it repeats itself. A cell that failed is left alone while another serves. While
no cell serves, the call waits, bounded.
"""

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import aiohttp
import numpy as np
import orjson
from pydantic import ValidationError

from db import cells
from db.cells import ServingCell
from gateway.clock import Clock
from gateway.store import Store
from gyre.contracts.engine import GenerateResponse, SamplingParams
from gyre.contracts.errors import BadInput, EngineFailed
from gyre.contracts.ids import RunId
from gyre.trajectory.arrays import Ids, as_ids

CELLS_FRESH_S = 1.0
"""How long a list of cells is believed."""
CONNECT_S = 5.0
KEEP_ALIVE_S = 4.0
"""Less than the 5 s after which uvicorn, and so SGLang, closes an idle connection."""
JSON = {"content-type": "application/json"}
FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 2.0
RETRIED_STATUS = frozenset({404, 408, 409, 423, 425, 429})
"""Client errors that say "not now": still starting, epoch over, paused, too many."""
SLOWEST_TOKEN_S = 0.1
"""An engine that is asked for a whole answer is silent for so long a token at most."""
SHUNNED_S = 5.0
"""How long a cell that could not be asked gets no call that another can take."""


OnTokens = Callable[[list[int]], None]
"""Is told all tokens that an answer has so far, each time there are more."""


class Busy(EngineFailed):
    """The engine is well, and takes this request later."""


class Refused(BadInput):
    """The engine will never take this request, most likely because it does not fit."""


@dataclass(slots=True)
class SampledAnswer:
    """Tokens of one answer; ``versions`` is ``[[policy version, number of tokens], ...]`` in order."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[list[int]] = field(default_factory=list)
    cached_tokens: int = 0
    mixed_kv_tokens: int = 0
    finish_reason: str = "abort"
    cell_id: str = ""
    engine_ms: int = 0

    def extend(self, answer: GenerateResponse) -> None:
        """Append a part."""
        meta = answer.meta_info
        if not self.ids:
            self.cached_tokens = meta.cached_tokens
        self.ids += answer.output_ids
        self.logprobs += [entry[0] for entry in meta.output_token_logprobs]
        self.mixed_kv_tokens += meta.mixed_kv_tokens
        self.finish_reason = meta.finish_reason.type if meta.finish_reason else "abort"
        for version, count in meta.weight_versions:
            if self.versions and self.versions[-1][0] == version:
                self.versions[-1][1] += count
            elif count:
                self.versions.append([version, count])

    def end_at(self, params: SamplingParams) -> None:
        """Take the answer for whole where an abort came with the last token that there was to sample."""
        if self.finish_reason == "abort" and self.ids:
            if self.ids[-1] in params.stop_token_ids:
                self.finish_reason = "stop"
            elif len(self.ids) >= params.max_new_tokens:
                self.finish_reason = "length"


class Engines:
    """Chooses a cell and asks its engine. Made in a running event loop."""

    def __init__(
        self, run: RunId, store: Store, clock: Clock, *, hold_s: float, read_timeout_s: float
    ) -> None:
        self._run, self._store, self._clock, self._hold_s = run, store, clock, hold_s
        self._read_timeout_s = read_timeout_s
        # The number of calls at once is bounded by admission, not by this client.
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._cells: list[ServingCell] = []
        self._read_at = float("-inf")
        self._in_flight: Counter[str] = Counter()
        self._last_cell: dict[str, str] = {}
        self._shunned_until: dict[str, float] = {}
        """By cell."""

    async def sample(
        self, rid: str, ids: Ids, params: SamplingParams, affinity: str, on_tokens: OnTokens | None = None
    ) -> SampledAnswer:
        """All tokens of one answer. ``affinity`` names what keeps its KV on one cell.

        Raises Refused when the request does not fit, EngineFailed when no engine got any further for
        the hold time.
        """
        sampled, since, delay = SampledAnswer(), time.monotonic(), FIRST_RETRY_S
        begun, problem = since, "no cell serves"
        while time.monotonic() - since < self._hold_s:
            cell = await self._choose(affinity)
            try:
                grown = cell is not None and await self._ask(cell, rid, ids, params, sampled, on_tokens)
            except (EngineFailed, aiohttp.ClientError, TimeoutError) as error:
                grown, problem = False, f"{type(error).__name__}: {error}"
                self._read_at = float("-inf")
                if cell is not None and not isinstance(error, Busy):
                    self._shunned_until[cell.id] = time.monotonic() + SHUNNED_S
            if sampled.ids and sampled.finish_reason != "abort":
                sampled.engine_ms = round(1000 * (time.monotonic() - begun))
                return sampled
            if grown:
                since, delay = time.monotonic(), FIRST_RETRY_S
            await asyncio.sleep(delay * random.uniform(0.5, 1))
            delay = min(2 * delay, LONGEST_RETRY_S)
        raise EngineFailed(f"no engine answered within {self._hold_s:.0f} s ({problem})")

    def forget(self, affinity: str) -> None:
        """Its KV need not be found again: it may get any cell when it comes back."""
        self._last_cell.pop(affinity, None)

    async def close(self) -> None:
        """End what is asked; nothing can be asked any more."""
        await self._http.close()

    async def _ask(
        self,
        cell: ServingCell,
        rid: str,
        ids: Ids,
        params: SamplingParams,
        sampled: SampledAnswer,
        on_tokens: OnTokens | None,
    ) -> bool:
        """Send what is left to sample to one cell. True if tokens came back."""
        with self._clock.stage("engine request"):
            body = _request(rid, ids, params, sampled.ids, stream=on_tokens is not None)
        self._in_flight[cell.id] += 1
        try:
            asking = self._http.post(
                f"{cell.engine_url}/generate",
                data=body,
                headers=JSON,
                timeout=self._patience(params.max_new_tokens if on_tokens is None else 0),
            )
            async with asking as response:
                if on_tokens is not None and response.status == 200:
                    answer = await _follow(response, lambda more: on_tokens(sampled.ids + more))
                else:
                    content = await response.read()
                    with self._clock.stage("engine answer"):
                        answer = _read(response.status, content)
        finally:
            self._in_flight[cell.id] -= 1
        if not answer.output_ids and not (answer.meta_info.finish_reason or None):
            raise EngineFailed("the engine answered without tokens")
        sampled.extend(answer)
        sampled.cell_id = cell.id
        sampled.end_at(params)
        return bool(answer.output_ids)

    def _patience(self, num_silent_tokens: int) -> aiohttp.ClientTimeout:
        """``num_silent_tokens`` may be sampled before the engine says anything."""
        silent_s = self._read_timeout_s + SLOWEST_TOKEN_S * num_silent_tokens
        return aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silent_s)

    async def _choose(self, affinity: str) -> ServingCell | None:
        """The cell that this affinity had, while it serves; else the one with the most room."""
        if time.monotonic() - self._read_at > CELLS_FRESH_S:
            self._cells = await self._store.run(lambda s: cells.serving(s, self._run))
            self._read_at = time.monotonic()
        if not self._cells:
            return None
        now = time.monotonic()
        well = [cell for cell in self._cells if self._shunned_until.get(cell.id, now) <= now]
        known = {cell.id: cell for cell in well or self._cells}
        if (last := self._last_cell.get(affinity)) in known:
            return known[last]
        cell = min(known.values(), key=lambda c: self._in_flight[c.id] / max(c.capacity, 1))
        self._last_cell[affinity] = cell.id
        return cell


async def _follow(response: aiohttp.ClientResponse, on_tokens: OnTokens) -> GenerateResponse:
    """The newest answer of a stream, which is the whole one unless the stream breaks.

    What came before a break counts as sampled and is continued elsewhere: it was told already. An event
    that is an error, that cannot be read or that takes something back is a break.
    """
    newest: GenerateResponse | None = None
    try:
        async for data in _events(response.content):
            newest = _grown(newest, _read(200, data))
            on_tokens(newest.output_ids)
    except (EngineFailed, aiohttp.ClientError, TimeoutError):
        if newest is None:
            raise
    if newest is None:
        raise EngineFailed("the engine's stream ended before it had begun")
    return newest


def _grown(told: GenerateResponse | None, newer: GenerateResponse) -> GenerateResponse:
    """The newer answer. Raises EngineFailed if it does not begin with all that was told."""
    if told is not None and newer.output_ids[: len(told.output_ids)] != told.output_ids:
        raise EngineFailed("the engine took tokens back that it had sent")
    return newer


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The data of server-sent events of any length, without the last one, which is no document."""
    rest = b""
    async for piece in content.iter_any():
        *whole, rest = (rest + piece).split(b"\n\n")
        for event in whole:
            data = event.removeprefix(b"data: ")
            if data != b"[DONE]":
                yield data


def _request(rid: str, ids: Ids, params: SamplingParams, sampled: list[int], *, stream: bool) -> bytes:
    """A GenerateRequest for what is left after ``sampled``, not made by its model: that looks at each id.

    Its name is its own: an engine that still works on one from before refuses another of the same name.
    """
    left = params.model_dump() | {"max_new_tokens": params.max_new_tokens - len(sampled)}
    context = np.concatenate([ids, as_ids(sampled)]) if sampled else ids
    name = f"{rid}/{len(sampled)}-{secrets.token_hex(4)}"
    document = {"rid": name, "input_ids": context, "sampling_params": left}
    return orjson.dumps(
        document | {"return_logprob": True, "stream": stream}, option=orjson.OPT_SERIALIZE_NUMPY
    )


def _read(status: int, content: bytes) -> GenerateResponse:
    """What an engine said. Raises Refused, or EngineFailed where it failed or its parts do not agree."""
    if status in RETRIED_STATUS:
        raise Busy(f"status {status}")
    if status >= 500:
        raise EngineFailed(f"status {status}")
    if status >= 400:
        raise Refused(_reason(status, content))
    try:
        answer = GenerateResponse.model_validate_json(content)
    except ValidationError as error:
        raise EngineFailed(f"unreadable answer ({error.error_count()} problems)") from error
    meta = answer.meta_info
    versioned = sum(count for _, count in meta.weight_versions)
    if not len(answer.output_ids) == len(meta.output_token_logprobs) == versioned:
        raise EngineFailed("the engine's ids, log-probabilities and versions differ in number")
    return answer


def _reason(status: int, content: bytes) -> str:
    try:
        return str(orjson.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the engine refused the request with status {status}"
