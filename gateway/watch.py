"""Warns when tool calls do not parse.

Training would go on without them, and teach nothing about tools. So they are counted in ``/health`` and
logged, at most once per minute.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable

from gyre.trajectory.answers import Answer

log = logging.getLogger(__name__)
MANY_ANSWERS = 50
"""After this many answers in a row that could call a tool and did not, the policy or the parser is broken."""
LOG_EVERY_S = 60.0


class CallWatch:
    """Counts tool calls, answers that could have made one, and markup that did not parse as a call."""

    def __init__(self, counts: Counter[str], now: Callable[[], float] = time.monotonic) -> None:
        self._counts, self._now = counts, now
        self._num_without = 0
        self._num_malformed = 0
        self._logged_at = float("-inf")

    @property
    def alarms(self) -> list[str]:
        """One sentence per current problem."""
        if self._num_without < MANY_ANSWERS:
            return []
        return [f"no tool call in the last {self._num_without} answers that were offered tools"]

    def note(self, answer: Answer, *, offered: bool) -> None:
        """Count an answer; ``offered``: its request had tools."""
        self._counts["tool_calls"] += len(answer.tool_calls)
        self._counts["malformed_tool_calls"] += answer.num_malformed
        self._counts["answers_offered_tools"] += offered
        self._num_malformed += answer.num_malformed
        self._num_without = 0 if answer.tool_calls else self._num_without + offered
        self._log()

    def _log(self) -> None:
        if self._now() - self._logged_at < LOG_EVERY_S:
            return
        warnings = self.alarms
        if self._num_malformed:
            warnings.append(f"{self._num_malformed} tool calls could not be read since the last such line")
        if warnings:
            log.warning("%s", "; ".join(warnings))
            self._num_malformed, self._logged_at = 0, self._now()
