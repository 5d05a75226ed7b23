"""A service that answers "too many" over an unknown limit, and a fleet that keeps it busy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Protocol

from heatsink.stores.memory.queue.homes import RateState, refused, reserve

BEGIN_MS = 1_800_000_000_000.0
TICK_MS = 5.0


class Strict(Protocol):
    per_s: float

    def takes(self, now_ms: float) -> bool: ...


@dataclass
class TokenBucket:
    per_s: float
    _tokens: float = inf
    _since_ms: float = 0.0

    def takes(self, now_ms: float) -> bool:
        grown = self._tokens + (now_ms - self._since_ms) * self.per_s / 1000
        self._tokens, self._since_ms = min(grown, self.per_s), now_ms
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


@dataclass
class FixedWindow:
    per_s: float
    _second: float = 0.0
    _taken: int = 0

    def takes(self, now_ms: float) -> bool:
        if now_ms // 1000 != self._second:
            self._second, self._taken = now_ms // 1000, 0
        if self._taken >= self.per_s:
            return False
        self._taken += 1
        return True


@dataclass
class SlidingWindow:
    per_s: float
    _times_ms: deque[float] = field(default_factory=deque)

    def takes(self, now_ms: float) -> bool:
        while self._times_ms and self._times_ms[0] <= now_ms - 1000:
            self._times_ms.popleft()
        if len(self._times_ms) >= self.per_s:
            return False
        self._times_ms.append(now_ms)
        return True


STRICT: dict[str, Callable[[float], Strict]] = {
    "token bucket": TokenBucket,
    "fixed window": FixedWindow,
    "sliding window": SlidingWindow,
}


@dataclass
class Fleet:
    """Always has something to start; its starts are late by chance and its answers take a while."""

    downstream: Strict
    limit: RateState
    unlimited_per_s: float
    chance: Random
    late_ms: float = 5.0
    answer_ms: float = 80.0
    ahead_ms: float = 1_000.0
    now_ms: float = BEGIN_MS
    done: int = 0
    refusals: int = 0
    _booked_ms: float = 0.0
    _events: list[tuple[float, int]] = field(default_factory=list)

    def run(self, seconds: float) -> tuple[float, float]:
        """What was done a second, and the share of starts that was refused."""
        done, refusals, until_ms = self.done, self.refusals, self.now_ms + seconds * 1000
        while self.now_ms < until_ms:
            if self._booked_ms <= self.now_ms:
                self._book()
            self.now_ms += TICK_MS
            self._live_until(self.now_ms)
        done, refusals = self.done - done, self.refusals - refusals
        return done / seconds, refusals / (done + refusals)

    def _book(self) -> None:
        asked = 10_000
        if self.limit.declared is None and self.limit.explored is None:
            asked = int(self.unlimited_per_s * TICK_MS / 1000)
        self.limit, grants = reserve(self.limit, self.now_ms, asked, self.ahead_ms)
        for i, wait_ms in enumerate(grants.wait_ms):
            self._booked_ms = self.now_ms + wait_ms
            start_ms = self._booked_ms + self.chance.uniform(0, self.late_ms)
            heappush(self._events, (start_ms, min(grants.size, asked - i * grants.size)))

    def _live_until(self, until_ms: float) -> None:
        while self._events and self._events[0][0] < until_ms:
            time_ms, starts = heappop(self._events)
            if not starts:
                self.limit = refused(self.limit, time_ms, self.unlimited_per_s, 0)
                continue
            taken = sum(self.downstream.takes(time_ms) for _ in range(starts))
            self.done += taken
            self.refusals += starts - taken
            if taken < starts:
                heappush(self._events, (time_ms + self.answer_ms, 0))
