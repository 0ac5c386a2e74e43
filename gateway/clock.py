"""CPU time of the call path, by stage: cheap enough to be always on."""

import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")
EVERY = 5
"""One pass in so many is measured, and counts for all: to ask for the time is a system call.

It is odd, because a call passes some stages twice."""
UNMEASURED = contextlib.nullcontext()


class Clock:
    """Seconds of CPU that the threads of this process spent in each stage.

    A stage is a stretch of code without ``await``, because a thread that waits for nothing works on others,
    and without another stage.
    """

    def __init__(self) -> None:
        self._passes: Counter[str] = Counter()
        self._spent_ns: defaultdict[str, int] = defaultdict(int)
        self._writing = threading.Lock()

    def stage(self, name: str) -> AbstractContextManager[None]:
        """``with clock.stage("encode"): ...``"""
        return Stage(self, name) if self._measures(name) else UNMEASURED

    async def staged(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, whose own steps count as a stage; what it waits for does not."""
        return await (Steps(self, name, work) if self._measures(name) else work)

    def spent_s(self) -> dict[str, float]:
        """So far, by stage."""
        with self._writing:
            return {name: EVERY * spent / 1e9 for name, spent in self._spent_ns.items()}

    def add(self, name: str, spent_ns: int) -> None:
        """Count a measured stretch."""
        with self._writing:
            self._spent_ns[name] += spent_ns

    def _measures(self, name: str) -> bool:
        self._passes[name] += 1
        return self._passes[name] % EVERY == 0


class Steps(Generic[T]):
    """An awaitable that measures each step of a coroutine."""

    __slots__ = ("_clock", "_name", "_work")

    def __init__(self, clock: Clock, name: str, work: Coroutine[Any, Any, T]) -> None:
        self._clock, self._name, self._work = clock, name, work

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[], Any] = partial(self._work.send, None)
        while True:
            try:
                with Stage(self._clock, self._name):
                    waited = step()
            except StopIteration as ended:
                return ended.value
            step = partial(self._work.send, None)
            try:
                yield waited
            except BaseException as error:
                step = partial(self._work.throw, error)


class Stage:
    """A measured stretch of one thread."""

    __slots__ = ("_begun_ns", "_clock", "_name")

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._begun_ns = time.thread_time_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._clock.add(self._name, time.thread_time_ns() - self._begun_ns)
