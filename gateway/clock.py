"""CPU time of the call path, by stage: cheap enough to be always on."""

import threading
import time
from collections import defaultdict
from types import TracebackType


class Clock:
    """Seconds of CPU that the threads of this process spent in each stage.

    A stage is a stretch of code without ``await``, because a thread that waits for nothing works on others.
    """

    def __init__(self) -> None:
        self._spent_ns: defaultdict[str, int] = defaultdict(int)
        self._writing = threading.Lock()
        self._thread = threading.local()

    def stage(self, name: str) -> "Stage":
        """``with clock.stage("encode"): ...``; a stage inside another is taken out of the outer one."""
        return Stage(self, name)

    def spent_s(self) -> dict[str, float]:
        """So far, by stage."""
        with self._writing:
            return {name: spent / 1e9 for name, spent in self._spent_ns.items()}

    def enter(self, stage: "Stage") -> None:
        stage.outer = getattr(self._thread, "stage", None)
        self._thread.stage = stage
        stage.begun_ns = time.thread_time_ns()

    def leave(self, stage: "Stage") -> None:
        spent = time.thread_time_ns() - stage.begun_ns
        self._thread.stage = stage.outer
        if stage.outer is not None:
            stage.outer.inner_ns += spent
        with self._writing:
            self._spent_ns[stage.name] += spent - stage.inner_ns


class Stage:
    """One pass through a stage by one thread."""

    __slots__ = ("_clock", "begun_ns", "inner_ns", "name", "outer")

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock, self.name = clock, name
        self.begun_ns = self.inner_ns = 0
        self.outer: Stage | None = None

    def __enter__(self) -> None:
        self._clock.enter(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._clock.leave(self)
