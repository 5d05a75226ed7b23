"""What the lab's actions call: services that fill up, and services that say "too many"."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from heatsink.bulk.actions import RateLimited
from heatsink.clock import Clock

RECENT = 200


@dataclass
class Saturating:
    """Takes `full` calls at a time; beyond that all get slower, and no more is done."""

    clock: Clock
    service_s: float
    full: int
    in_flight: int = 0
    _recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def p95_s(self) -> float:
        """Of the latest calls."""
        ordered = sorted(self._recent_s)
        return ordered[len(ordered) * 95 // 100] if ordered else 0.0

    async def call(self, *_: object) -> None:
        self.in_flight += 1
        try:
            took_s = self.service_s * max(self.in_flight / self.full, 1.0)
            self._recent_s.append(took_s)
            await self.clock.sleep(took_s)
        finally:
            self.in_flight -= 1


@dataclass
class Strict:
    """Refuses what is more than `per_s` calls in any second."""

    clock: Clock
    per_s: float
    answer_s: float = 0.05
    calls: int = 0
    refused: int = 0
    _taken_s: deque[float] = field(default_factory=deque)

    async def call(self, *_: object) -> None:
        self.calls += 1
        now_s = self.clock.monotonic_s()
        while self._taken_s and self._taken_s[0] <= now_s - 1:
            self._taken_s.popleft()
        is_taken = len(self._taken_s) < self.per_s
        if is_taken:
            self._taken_s.append(now_s)
        await self.clock.sleep(self.answer_s)
        if not is_taken:
            self.refused += 1
            raise RateLimited
