"""Time limit of a stage that works through files."""

import time

from gyre.contracts.errors import GyreError


class Deadline:
    """Checked between two files, so that a stage ends with its own error before a time-out of its caller."""

    def __init__(self, limit_s: float, error: type[GyreError], stage: str) -> None:
        """``error`` is raised by ``check``; its sentence names the ``stage``."""
        self._limit_s, self._error, self._stage = limit_s, error, stage
        self._end = time.monotonic() + limit_s

    def check(self) -> None:
        """Raise the stage's error once its time is over."""
        if time.monotonic() > self._end:
            raise self._error(f"{self._stage} took longer than the {self._limit_s:g} s it may take")
