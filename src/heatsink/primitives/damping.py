"""Keep decisions stable: grow by a forecast, shrink by the recent peak."""

from __future__ import annotations

from collections import deque


def forecast(previous: float, current: float, interval_s: float, lead_s: float) -> float:
    """Return the rate in `lead_s` seconds if it goes on rising as it did in the last `interval_s`.

    For a falling rate, the forecast is the current rate.
    """
    slope = (current - previous) / interval_s
    return current + max(slope, 0.0) * lead_s


class RecentPeak:
    """The highest value of the last `span_s` seconds; values are 0 or more.

    Each call takes amortised constant time.
    """

    __slots__ = ("_falling", "span_s")

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self._falling: deque[tuple[float, float]] | None = None  # none is made for zeros alone

    def add(self, time_s: float, value: float) -> None:
        if self._falling is None:
            if value <= 0:
                return
            self._falling = deque()
        while self._falling and self._falling[-1][1] <= value:
            self._falling.pop()
        self._falling.append((time_s, value))

    def at(self, time_s: float) -> float:
        """Return the highest value in the `span_s` seconds before `time_s`; 0 if there was none.

        `time_s` must not decrease from call to call.
        """
        if self._falling is None:
            return 0.0
        while self._falling and self._falling[0][0] < time_s - self.span_s:
            self._falling.popleft()
        return self._falling[0][1] if self._falling else 0.0
