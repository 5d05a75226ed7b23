"""How long the store takes to answer: how far ahead the closed time has to be depends on it."""

from __future__ import annotations

from collections import deque
from statistics import median

SAMPLES = 5


class Latency:
    """The median of the last few answers: a stall of ours is not yet a slow store."""

    def __init__(self) -> None:
        self._last: deque[float] = deque([0.0], maxlen=SAMPLES)

    def note(self, seconds: float) -> None:
        self._last.append(seconds)

    @property
    def typical_s(self) -> float:
        return median(self._last)
