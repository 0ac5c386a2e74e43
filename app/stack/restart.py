"""Backoff and circuit breaker for restarts; our own, a pure function of the times of death."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """Delays that double up to ``longest_s``; more than ``burst`` deaths in the window open the breaker."""

    first_s: float = 0.1
    """Short, because harnesses give up on a gateway within seconds."""
    longest_s: float = 5.0
    window_s: float = 60.0
    burst: int = 10
    """Deaths within the window after which the next one opens the circuit breaker."""
    pause_s: float = 60.0

    def is_open(self, deaths: Sequence[float], now: float) -> bool:
        """Return whether the circuit breaker is open: more than ``burst`` deaths in the window."""
        return self._recent(deaths, now) > self.burst

    def delay_s(self, deaths: Sequence[float], now: float) -> float:
        """Return the seconds to wait before the next start; doubles with each death in the window."""
        recent = self._recent(deaths, now)
        if recent > self.burst:
            return self.pause_s
        return min(self.longest_s, self.first_s * 2.0 ** max(0, recent - 1))

    def _recent(self, deaths: Sequence[float], now: float) -> int:
        return sum(now - at <= self.window_s for at in deaths)
