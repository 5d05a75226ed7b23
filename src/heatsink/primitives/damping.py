"""Keep decisions stable: grow by a forecast, shrink by the recent peak."""

from __future__ import annotations

from collections import deque


def forecast(previous: float, current: float, interval_s: float, lead_s: float) -> float:
    """The rate in `lead_s` seconds if it rises as it does now; a falling rate is left as it is."""
    slope = (current - previous) / interval_s
    return current + max(slope, 0.0) * lead_s


class RecentPeak:
    """The highest value of the last `span_s` seconds, in amortised constant time."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._falling: deque[tuple[float, float]] = deque()

    def add(self, time_s: float, value: float) -> None:
        while self._falling and self._falling[-1][1] <= value:
            self._falling.pop()
        self._falling.append((time_s, value))

    def at(self, time_s: float) -> float:
        """The peak at a time, which must not go back; 0 if nothing was added in the span."""
        while self._falling and self._falling[0][0] < time_s - self._span_s:
            self._falling.popleft()
        return self._falling[0][1] if self._falling else 0.0
