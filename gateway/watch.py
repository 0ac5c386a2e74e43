"""Says aloud when answers look as if their tool calls were not read.

Training would work without them, and teach nothing about tools; so this is counted where health is asked
for, and logged, at most once a minute.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable

from gyre.trajectory.answers import Answer

log = logging.getLogger(__name__)
MANY_ANSWERS = 50
"""So many answers that could call a tool, and none that did: the policy or its reading is broken."""
LOG_EVERY_S = 60.0


class CallWatch:
    """Counts tool calls, answers that could have made one, and markup that was no call."""

    def __init__(self, counts: Counter[str], now: Callable[[], float] = time.monotonic) -> None:
        self._counts, self._now = counts, now
        self._num_without = 0
        self._num_malformed = 0
        self._logged_at = float("-inf")

    @property
    def alarms(self) -> list[str]:
        """What is wrong at the moment, in sentences."""
        if self._num_without < MANY_ANSWERS:
            return []
        return [f"no tool call in the last {self._num_without} answers that were offered tools"]

    def note(self, answer: Answer, *, offered: bool) -> None:
        """Take account of an answer; ``offered``: its request had tools."""
        self._counts["tool_calls"] += len(answer.tool_calls)
        self._counts["malformed_tool_calls"] += answer.num_malformed
        self._counts["answers_offered_tools"] += offered
        self._num_malformed += answer.num_malformed
        self._num_without = 0 if answer.tool_calls else self._num_without + offered
        self._log()

    def _log(self) -> None:
        if self._now() - self._logged_at < LOG_EVERY_S:
            return
        told = self.alarms
        if self._num_malformed:
            told.append(f"{self._num_malformed} tool calls could not be read since the last such line")
        if told:
            log.warning("%s", "; ".join(told))
            self._num_malformed, self._logged_at = 0, self._now()
