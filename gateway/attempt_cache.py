"""The attempts in memory: each read from Postgres once, the longest unused let go when all hold too much."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Container

from gateway.live_attempt import LiveAttempt, load_attempt
from gateway.store import Store
from gyre.contracts.ids import AttemptId

MOST_HELD_TOKENS = 200_000_000
"""Tokens of all attempts in memory, 4 bytes each, and four characters of what was said for one more; beyond,
idle attempts are read again when they call."""


class AttemptCache:
    """No attempt is in memory twice, and none goes while somebody uses it."""

    def __init__(
        self,
        store: Store,
        unwritten: Callable[[], Container[AttemptId]],
        forgotten: Callable[[AttemptId], None],
        counts: Counter[str],
    ) -> None:
        """``unwritten`` names attempts of which Postgres does not know all yet: they stay.

        ``forgotten`` is told of each attempt that goes, ``counts`` takes ``loaded``, the attempts read.
        """
        self._store, self._unwritten, self._forgotten = store, unwritten, forgotten
        self._counts = counts
        self._reads: dict[AttemptId, asyncio.Task[LiveAttempt]] = {}
        """The last used is the last."""
        self._users: Counter[AttemptId] = Counter()
        self._sizes: dict[AttemptId, int] = {}
        self._held = 0

    @contextlib.asynccontextmanager
    async def using(self, attempt: AttemptId) -> AsyncGenerator[LiveAttempt]:
        """The attempt's state, which stays the one there is until the block ends.

        Raises Unauthorized if there is no such attempt, Fenced if it is sealed.
        """
        self._users[attempt] += 1
        try:
            state = await self._read_once(attempt)
            try:
                yield state
            finally:
                self.weigh(state)
        finally:
            self._users[attempt] -= 1
            if not self._users[attempt]:
                del self._users[attempt]

    def get(self, attempt: AttemptId) -> LiveAttempt | None:
        """The attempt's state if it is in memory."""
        task = self._reads.get(attempt)
        return task.result() if task and task.done() and not task.exception() else None

    def weigh(self, state: LiveAttempt) -> None:
        """Take note that a state may have grown."""
        if self.get(state.attempt) is state:
            size = state.size
            self._held += size - self._sizes.get(state.attempt, 0)
            self._sizes[state.attempt] = size

    def forget(self, attempt: AttemptId) -> None:
        """Whoever has its state goes on with it; the next one reads it again."""
        self._reads.pop(attempt, None)
        self._held -= self._sizes.pop(attempt, 0)
        self._forgotten(attempt)

    async def _read_once(self, attempt: AttemptId) -> LiveAttempt:
        task = self._reads.pop(attempt, None)
        if task is None:
            self._evict()
            task = asyncio.create_task(self._store.run(lambda s: load_attempt(s, attempt)))
            task.add_done_callback(lambda done: self._was_read(attempt, done))
        self._reads[attempt] = task
        return await asyncio.shield(task)

    def _was_read(self, attempt: AttemptId, task: asyncio.Task[LiveAttempt]) -> None:
        """Forget an attempt that could not be read, whatever the reason: the next call tries again."""
        self._counts["loaded"] += 1
        if (task.cancelled() or task.exception()) and self._reads.get(attempt) is task:
            self.forget(attempt)

    def _evict(self) -> None:
        """Let idle attempts go, the longest unused first: Postgres knows all that they held."""
        if self._held <= MOST_HELD_TOKENS:
            return
        unwritten = self._unwritten()
        for attempt in [*self._reads]:
            if self._held <= MOST_HELD_TOKENS:
                return
            state = self.get(attempt)
            if state and not (state.busy or attempt in self._users or attempt in unwritten):
                self.forget(attempt)
