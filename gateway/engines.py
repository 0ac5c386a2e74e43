"""The router and the engine client: turns one call into one list of sampled tokens, whatever cells do.

An aborted request continues on the next cell from its input ids plus the ids sampled so far. A failed one
starts again with the same seed, so it repeats itself. A cell that failed is avoided while another serves.
While no cell serves, the call waits, for ``hold_s`` at most.
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
from gateway.store import Store
from gyre.contracts.engine import GenerateResponse, SamplingParams
from gyre.contracts.errors import BadInput, EngineFailed
from gyre.contracts.ids import RunId
from gyre.trajectory.arrays import Ids, as_ids

CELLS_FRESH_S = 1.0
"""How long a list of cells is used before it is read again."""
CONNECT_S = 5.0
KEEP_ALIVE_S = 4.0
"""Less than the 5 s after which uvicorn, and so SGLang, closes an idle connection."""
JSON = {"content-type": "application/json"}
FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 2.0
RETRIED_STATUS = frozenset({404, 408, 409, 423, 425, 429})
"""Client errors that mean "not now": still starting, epoch over, paused, too many requests."""
SLOWEST_TOKEN_S = 0.1
"""Longest silence allowed per requested token while an engine samples an answer that comes as a whole."""
AVOID_S = 5.0
"""How long a cell that failed a request gets no call that another cell can take."""


OnTokens = Callable[[list[int]], None]
"""Called with all tokens of the answer so far, each time there are more."""


class Busy(EngineFailed):
    """The engine is healthy, and takes this request later."""


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
        """Append one engine's part of the answer."""
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
        """Treat the answer as complete if it was aborted with the last token that there was to sample."""
        if self.finish_reason == "abort" and self.ids:
            if self.ids[-1] in params.stop_token_ids:
                self.finish_reason = "stop"
            elif len(self.ids) >= params.max_new_tokens:
                self.finish_reason = "length"


class Engines:
    """Chooses a cell and requests tokens from its engine. Create it in a running event loop."""

    def __init__(self, run: RunId, store: Store, *, hold_s: float, read_timeout_s: float) -> None:
        self._run, self._store, self._hold_s = run, store, hold_s
        self._read_timeout_s = read_timeout_s
        # Admission bounds the number of concurrent calls, not this client.
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._cells: list[ServingCell] = []
        self._read_at = float("-inf")
        self._in_flight: Counter[str] = Counter()
        self._last_cell: dict[str, str] = {}
        """Affinity -> id of the cell that has its KV."""
        self._avoided_until: dict[str, float] = {}
        """Cell id -> end of its `AVOID_S`."""

    async def sample(
        self, rid: str, ids: Ids, params: SamplingParams, affinity: str, on_tokens: OnTokens | None = None
    ) -> SampledAnswer:
        """Sample all tokens of one answer. Calls with one ``affinity`` share their KV on one cell.

        Raises Refused when the request does not fit, EngineFailed when no engine made progress for the
        hold time.
        """
        sampled, since, delay = SampledAnswer(), time.monotonic(), FIRST_RETRY_S
        begun, problem = since, "no cell serves"
        while time.monotonic() - since < self._hold_s:
            cell = await self._choose(affinity)
            try:
                grown = cell is not None and await self._request(cell, rid, ids, params, sampled, on_tokens)
            except (EngineFailed, aiohttp.ClientError, TimeoutError) as error:
                grown, problem = False, f"{type(error).__name__}: {error}"
                self._read_at = float("-inf")  # The list of cells may be out of date.
                if cell is not None and not isinstance(error, Busy):
                    self._avoided_until[cell.id] = time.monotonic() + AVOID_S
            if sampled.ids and sampled.finish_reason != "abort":
                sampled.engine_ms = round(1000 * (time.monotonic() - begun))
                return sampled
            if grown:
                since, delay = time.monotonic(), FIRST_RETRY_S
            await asyncio.sleep(delay * random.uniform(0.5, 1))
            delay = min(2 * delay, LONGEST_RETRY_S)
        raise EngineFailed(f"no engine answered within {self._hold_s:.0f} s ({problem})")

    def forget(self, affinity: str) -> None:
        """Forget which cell has its KV: the next call with this affinity may go to any cell."""
        self._last_cell.pop(affinity, None)

    async def close(self) -> None:
        """Cancel open requests; no new ones are possible."""
        await self._http.close()

    async def _request(
        self,
        cell: ServingCell,
        rid: str,
        ids: Ids,
        params: SamplingParams,
        sampled: SampledAnswer,
        on_tokens: OnTokens | None,
    ) -> bool:
        """Request the tokens that are left from one cell. Return True if any came back."""
        body = request_body(rid, ids, params, sampled.ids, stream=on_tokens is not None)
        # A stream speaks with every token; an answer that comes as a whole is silent until its last one.
        num_silent_tokens = params.max_new_tokens if on_tokens is None else 0
        silent_s = self._read_timeout_s + SLOWEST_TOKEN_S * num_silent_tokens
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silent_s)
        url = f"{cell.engine_url}/generate"
        self._in_flight[cell.id] += 1
        try:
            async with self._http.post(url, data=body, headers=JSON, timeout=timeout) as response:
                if on_tokens is not None and response.status == 200:
                    answer = await _follow(response, lambda more: on_tokens(sampled.ids + more))
                else:
                    answer = read_response(response.status, await response.read())
        finally:
            self._in_flight[cell.id] -= 1
        if not answer.output_ids and not answer.meta_info.finish_reason:
            raise EngineFailed("the engine answered without tokens")
        sampled.extend(answer)
        sampled.cell_id = cell.id
        sampled.end_at(params)
        return bool(answer.output_ids)

    async def _choose(self, affinity: str) -> ServingCell | None:
        """Return the cell that this affinity had, while it serves; else the one with the most room."""
        if time.monotonic() - self._read_at > CELLS_FRESH_S:
            self._cells = await self._store.run(lambda s: cells.serving(s, self._run))
            self._read_at = time.monotonic()
        if not self._cells:
            return None
        now = time.monotonic()
        healthy = [cell for cell in self._cells if self._avoided_until.get(cell.id, now) <= now]
        candidates = {cell.id: cell for cell in healthy or self._cells}
        if (last := self._last_cell.get(affinity)) in candidates:
            return candidates[last]
        cell = min(candidates.values(), key=lambda c: self._in_flight[c.id] / max(c.capacity, 1))
        self._last_cell[affinity] = cell.id
        return cell


async def _follow(response: aiohttp.ClientResponse, on_tokens: OnTokens) -> GenerateResponse:
    """Return the last answer of a stream, which is the complete one unless the stream breaks.

    What came before a break counts as sampled and is continued elsewhere: the client may have read it.
    An error event, an unreadable one, or one that takes tokens back is a break.
    """
    newest: GenerateResponse | None = None
    try:
        async for data in _events(response.content):
            newer = read_response(200, data)
            if newest is not None and newer.output_ids[: len(newest.output_ids)] != newest.output_ids:
                raise EngineFailed("the engine took tokens back that it had sent")
            newest = newer
            on_tokens(newest.output_ids)
    except (EngineFailed, aiohttp.ClientError, TimeoutError):
        if newest is None:
            raise
    if newest is None:
        raise EngineFailed("the engine's stream ended before it had begun")
    return newest


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the data of server-sent events of any length, but not the closing ``[DONE]``."""
    rest = b""
    async for piece in content.iter_any():
        *whole, rest = (rest + piece).split(b"\n\n")
        for event in whole:
            data = event.removeprefix(b"data: ")
            if data != b"[DONE]":
                yield data


def request_body(rid: str, ids: Ids, params: SamplingParams, sampled: list[int], *, stream: bool) -> bytes:
    """Serialize a GenerateRequest for what is left after ``sampled``.

    Does not go through the pydantic model, which would validate every id. The request name is unique: an
    engine that still works on an earlier one refuses a second one of the same name.
    """
    left = params.model_dump() | {"max_new_tokens": params.max_new_tokens - len(sampled)}
    context = np.concatenate([ids, as_ids(sampled)]) if sampled else ids
    name = f"{rid}/{len(sampled)}-{secrets.token_hex(4)}"
    document = {"rid": name, "input_ids": context, "sampling_params": left}
    return orjson.dumps(
        document | {"return_logprob": True, "stream": stream}, option=orjson.OPT_SERIALIZE_NUMPY
    )


def read_response(status: int, content: bytes) -> GenerateResponse:
    """Parse an engine's response. Raises Refused, Busy, or EngineFailed for an error or a contradiction."""
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
