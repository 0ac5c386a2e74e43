"""Continuous batching: one thread admits, prefills and decodes, and runs commands between two steps."""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal, TypeVar

import torch
from torch import Tensor

from gpu_workers.engine.kv import RunningCache
from gpu_workers.engine.load_weights import Weights
from gpu_workers.engine.prefix import PrefixCache
from gpu_workers.engine.qwen3 import Model
from gpu_workers.engine.requests import Generation
from gpu_workers.engine.sampling import Draw, sample
from gyre.contracts.engine import FinishInfo
from gyre.contracts.errors import EngineFailed

log = logging.getLogger("gyre.engine")

T = TypeVar("T")
PREFILL_TOKENS = 512
"""Prompt tokens computed between two decode steps. Limits how long a new prompt delays running requests."""
_IDLE_POLL_S = 1.0
"""How often an idle thread checks whether it should end."""


class Scheduler:
    """Owns the model and its caches. Methods without a leading underscore may be called from any thread.

    ``notify`` is called in the scheduler's thread, at most once per step, with the requests that ended, or
    that stream and got tokens.
    """

    def __init__(
        self,
        model: Model,
        cache: RunningCache,
        prefixes: PrefixCache,
        *,
        version: int,
        max_batch: int,
        notify: Callable[[list[Generation]], None],
    ) -> None:
        self.model, self._cache, self._prefixes = model, cache, prefixes
        self._max_batch, self._notify = max_batch, notify
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        """The index in this list is the row of the cache."""
        self._changed: list[Generation] = []
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._stopping = False
        self._closing, self._closed = threading.Lock(), False
        """``_closed`` says whether commands are refused. It is read and changed under the lock."""
        self.version = version
        self.paused = False
        self.released = False
        self.num_steps = 0
        self.num_sampled = 0
        self.num_prefilled = 0
        self.num_reused = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Requests in flight are aborted and keep their tokens."""
        self._stopping = True
        self._command(self._abort_all)
        self._thread.join(timeout=30)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_bytes(self) -> int:
        return self._cache.num_bytes + self._prefixes.num_bytes

    def submit(self, generation: Generation) -> None:
        """Queue a request for sampling. Raises EngineFailed when the thread has ended."""
        if not self._command(lambda: self._waiting.append(generation)):
            raise EngineFailed("the scheduler has stopped")

    def abort(self, generation: Generation) -> None:
        """End a request with the tokens it has. A finished one is left alone."""
        self._command(lambda: self._abort(lambda g: g is generation))

    def abort_all(self) -> None:
        """End all requests with the tokens they have."""
        self._command(self._abort_all)

    def pause(self, mode: Literal["in_place", "retract", "abort"] = "in_place") -> Future[None]:
        """Sample nothing until ``resume``. Running requests keep their KV, lose it, or are aborted."""
        return self._call(lambda: self._pause(mode))

    def resume(self) -> Future[None]:
        """Sample again after ``pause``."""
        return self._call(lambda: setattr(self, "paused", False))

    def flush_cache(self) -> Future[None]:
        """Forget all prefixes. Running requests keep their KV."""
        return self._call(self._flush)

    def release_memory(self) -> Future[None]:
        """Free the KV and the device's copy of the weights. Requests wait until ``resume_memory``."""
        return self._call(self._release)

    def resume_memory(self) -> Future[None]:
        """Bring the weights back to the device. Running requests first recompute their KV."""
        return self._call(self._restore)

    def swap(self, weights: Weights, version: int, mode: Literal["retract", "in_place"]) -> Future[None]:
        """Use other weights from the next step on, without ending any request."""
        return self._call(lambda: self._swap(weights, version, mode))

    def _call(self, action: Callable[[], T]) -> Future[T]:
        """Run ``action`` in the scheduler's thread between two steps, and return its future result."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # The caller gave up and cancelled it.
            try:
                future.set_result(action())
            except Exception as error:  # Raised in the caller, which waits for the result.
                future.set_exception(error)

        if not self._command(run):
            future.set_exception(EngineFailed("the scheduler has stopped"))
        return future

    def _command(self, command: Callable[[], None]) -> bool:
        """Queue a command and return True, or return False once closed. An accepted command always runs."""
        with self._closing:
            if not self._closed:
                self._commands.put(command)
            return not self._closed

    # All methods below run in the scheduler's thread only.

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._run_commands()
                if self._has_work():
                    self._step()
                self._deliver()
            self._close()
            self._abort_all()
        except Exception as error:  # Nothing can be computed any more: every client gets the reason.
            log.exception("the scheduler failed")
            self._close()
            for generation in (*self._running, *self._waiting):
                generation.failure = f"the engine failed: {error}"
                self._changed.append(generation)
        self._deliver()

    def _close(self) -> None:
        """Accept no more commands and run those already accepted, because clients wait for each of them."""
        with self._closing:
            self._closed = True
        while not self._commands.empty():
            try:
                self._commands.get_nowait()()
            except Exception:  # Clients get the failure that ended the thread, not this one.
                log.exception("a command failed while the scheduler ended")

    def _run_commands(self) -> None:
        """Run the queued commands; wait for one when there is nothing to compute."""
        try:
            self._commands.get(block=not self._has_work() and not self._stopping, timeout=_IDLE_POLL_S)()
            while True:
                self._commands.get_nowait()()
        except queue.Empty:
            return

    def _has_work(self) -> bool:
        return not (self.paused or self.released) and bool(self._running or self._waiting)

    def _step(self) -> None:
        self._admit()
        self._prefill()
        self._decode()
        self.num_steps += 1

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_batch:
            self._running.append(self._waiting.popleft())
        self._reserve()

    def _reserve(self) -> None:
        """Make room in the cache for one more token per running request."""
        longest = max((len(g.tokens) for g in self._running), default=0)
        self._cache.reserve([g.num_cached for g in self._running], longest)

    def _prefill(self) -> None:
        """Compute a bounded number of uncached tokens, oldest request first."""
        budget = PREFILL_TOKENS
        complete: list[tuple[Generation, Tensor]] = []
        for row, generation in enumerate(self._running):
            if generation.num_uncached > 1 and budget > 0:
                logits_1V, count = self._prefill_chunk(row, generation, budget)
                budget -= count
                if generation.num_uncached == 0:
                    # Stored before the next request starts, because siblings of a group arrive together.
                    self._store_prefix(row, generation)
                    complete.append((generation, logits_1V))
        if complete:
            self._sample(torch.cat([logits for _, logits in complete]), [g for g, _ in complete])
            self._remove_ended()

    def _prefill_chunk(self, row: int, generation: Generation, budget: int) -> tuple[Tensor, int]:
        """Compute up to ``budget`` tokens of a request. Returns the last logits [1, V] and the count."""
        view = self._cache.row(row)
        if generation.num_cached == 0:
            generation.num_cached = self._prefixes.load(generation.tokens, view)
            if generation.reused is None:
                generation.reused = min(generation.num_cached, len(generation.prompt))
                self.num_reused += generation.reused
        start = generation.num_cached
        chunk = generation.tokens[start : start + budget]
        logits_1V = self.model.prefill(view, chunk, start)
        generation.num_cached += len(chunk)
        self.num_prefilled += len(chunk)
        return logits_1V, len(chunk)

    def _decode(self) -> None:
        ready = [(row, g) for row, g in enumerate(self._running) if g.num_uncached == 1]
        if not ready:
            return
        rows, generations = zip(*ready, strict=True)
        self._reserve()
        logits_BV = self.model.decode(
            self._cache.data, rows, [g.tokens[-1] for g in generations], [g.num_cached for g in generations]
        )
        for generation in generations:
            generation.num_cached += 1
        self._sample(logits_BV, list(generations))
        self._remove_ended()

    def _sample(self, logits_BV: Tensor, generations: list[Generation]) -> None:
        draws = [Draw(g.params, len(g.tokens)) for g in generations]
        tokens, logprobs = sample(logits_BV, draws)
        for generation, token, logprob in zip(generations, tokens, logprobs, strict=True):
            generation.append(token, logprob, self.version)
            if generation.stream or generation.ended:
                self._changed.append(generation)
        self.num_sampled += len(tokens)

    def _store_prefix(self, row: int, generation: Generation) -> None:
        if generation.num_cached and not generation.mixed_kv:
            self._prefixes.store(generation.tokens[: generation.num_cached], self._cache.row(row))

    def _remove_ended(self) -> None:
        """Free the rows of ended requests, moving the last row into each hole."""
        for row in range(len(self._running) - 1, -1, -1):
            if not self._running[row].ended:
                continue
            self._store_prefix(row, self._running[row])
            last = self._running.pop()
            if row < len(self._running):
                # After a retraction num_cached is 0, and there may be no row to copy.
                self._cache.move(len(self._running), row, last.num_cached)
                self._running[row] = last

    def _abort(self, chosen: Callable[[Generation], bool]) -> None:
        found = [g for g in (*self._running, *self._waiting) if chosen(g)]
        for generation in found:
            generation.finish = FinishInfo(type="abort")
        self._changed += found
        self._waiting = deque(g for g in self._waiting if not g.ended)
        self._remove_ended()

    def _abort_all(self) -> None:
        self._abort(lambda _: True)

    def _pause(self, mode: Literal["in_place", "retract", "abort"]) -> None:
        self.paused = True
        if mode == "abort":
            self._abort_all()
        elif mode == "retract":
            self._retract()

    def _retract(self) -> None:
        for generation in self._running:
            generation.drop_kv()

    def _flush(self) -> None:
        self._prefixes.clear()
        if not self._running:
            self._cache.release()

    def _release(self) -> None:
        self.released = True
        self._retract()
        self._prefixes.clear()
        self._cache.release()
        self.model.offload()

    def _restore(self) -> None:
        self.model.load()
        self.released = False

    def _swap(self, weights: Weights, version: int, mode: Literal["retract", "in_place"]) -> None:
        self._prefixes.clear()
        if mode == "retract":
            self._retract()
        for generation in self._running:
            generation.mixed_kv = generation.num_cached > 0
        self.model.weights, self.version = weights, version

    def _deliver(self) -> None:
        if self._changed:
            # A prefill and a decode of the same step may both have changed a request.
            changed, self._changed = list(dict.fromkeys(self._changed)), []
            self._notify(changed)
