"""The attempts in memory: each is loaded once, and the least recently used are evicted beyond a bound."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Container

from gateway.live_attempt import LiveAttempt, load_attempt
from gateway.store import Store
from gyre.contracts.ids import AttemptId

MOST_HELD_TOKENS = 200_000_000
"""Bound for all attempts together, in tokens of 4 bytes as `LiveAttempt.size` counts them. Beyond it, idle
attempts are evicted and loaded again at their next call."""


class AttemptCache:
    """Holds no attempt twice, and evicts none that is in use."""

    def __init__(
        self,
        store: Store,
        unwritten: Callable[[], Container[AttemptId]],
        on_evicted: Callable[[AttemptId], None],
        counts: Counter[str],
    ) -> None:
        """``unwritten`` returns the attempts whose record in Postgres is behind: they stay in memory.

        ``on_evicted`` is called with each attempt that leaves; ``counts["loaded"]`` counts the loads.
        """
        self._store, self._unwritten, self._on_evicted = store, unwritten, on_evicted
        self._counts = counts
        # In order of use, the most recent last.
        self._loads: dict[AttemptId, asyncio.Task[LiveAttempt]] = {}
        self._users: Counter[AttemptId] = Counter()
        self._sizes: dict[AttemptId, int] = {}
        self._held = 0

    @contextlib.asynccontextmanager
    async def using(self, attempt: AttemptId) -> AsyncGenerator[LiveAttempt]:
        """Load the attempt unless it is in memory, and keep it there until the block ends.

        Raises Unauthorized if it does not exist, Fenced if it is sealed.
        """
        self._users[attempt] += 1
        try:
            live = await self._load_once(attempt)
            try:
                yield live
            finally:
                self.update_size(live)
        finally:
            self._users[attempt] -= 1
            if not self._users[attempt]:
                del self._users[attempt]

    def get(self, attempt: AttemptId) -> LiveAttempt | None:
        """Return the attempt if it is in memory."""
        task = self._loads.get(attempt)
        return task.result() if task and task.done() and not task.exception() else None

    def update_size(self, live: LiveAttempt) -> None:
        """Account for an attempt that may have grown."""
        if self.get(live.attempt) is live:
            size = live.size
            self._held += size - self._sizes.get(live.attempt, 0)
            self._sizes[live.attempt] = size

    def forget(self, attempt: AttemptId) -> None:
        """Drop an attempt: calls under way keep the object they have, the next call loads it again."""
        self._loads.pop(attempt, None)
        self._held -= self._sizes.pop(attempt, 0)
        self._on_evicted(attempt)

    async def _load_once(self, attempt: AttemptId) -> LiveAttempt:
        """Return the attempt; concurrent calls share one load."""
        task = self._loads.pop(attempt, None)
        if task is None:
            self._evict()
            task = asyncio.create_task(self._store.run(lambda s: load_attempt(s, attempt)))
            task.add_done_callback(lambda done: self._loaded(attempt, done))
        self._loads[attempt] = task
        # A client that leaves cancels its own wait, not the load that others wait for.
        return await asyncio.shield(task)

    def _loaded(self, attempt: AttemptId, task: asyncio.Task[LiveAttempt]) -> None:
        """Forget an attempt that failed to load, for whatever reason: the next call tries again."""
        self._counts["loaded"] += 1
        if (task.cancelled() or task.exception()) and self._loads.get(attempt) is task:
            self.forget(attempt)

    def _evict(self) -> None:
        """Evict idle attempts, least recently used first, until the rest is within the bound."""
        if self._held <= MOST_HELD_TOKENS:
            return
        unwritten = self._unwritten()
        for attempt in [*self._loads]:
            if self._held <= MOST_HELD_TOKENS:
                return
            live = self.get(attempt)
            if live and not (live.busy or attempt in self._users or attempt in unwritten):
                self.forget(attempt)
