"""Rate-limited lanes of one partition: starts are booked at the limit's home, then claimed.

Nothing is claimed before its time, and a start that could not be used within `LATE_MS` of it is
forfeited, so a rate holds whatever happens here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from heatsink.bulk.rates import LATE_MS
from heatsink.bulk.store import LaneDepth, LimitStore
from heatsink.clock import Clock
from heatsink.errors import HeatsinkError

logger = logging.getLogger("heatsink")
AHEAD_MS = 1_000
LATE_S = LATE_MS / 1000
RETRY_S = 0.25


@dataclass
class Booked:
    starts: deque[tuple[float, int]] = field(default_factory=deque)
    retry_s: float = 0.0


class Lanes:
    def __init__(self, limits: LimitStore, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._lanes: dict[str, Booked] = {}

    async def book(self, depths: Iterable[LaneDepth]) -> None:
        """Reserve starts for the lanes that have items waiting and none booked."""
        known = {depth.lane: depth.waiting for depth in depths if depth.waiting}
        self._lanes = {lane: self._lanes.get(lane, Booked()) for lane in known}
        now_s = self._clock.monotonic_s()
        needy = [lane for lane, b in self._lanes.items() if not b.starts and b.retry_s <= now_s]
        await asyncio.gather(*(self._reserve(lane, known[lane]) for lane in needy))

    async def _reserve(self, lane: str, waiting: int) -> None:
        booked = self._lanes[lane]
        try:
            grants = await self._limits.reserve(lane, waiting, AHEAD_MS)
        except HeatsinkError as error:
            logger.info("no starts could be booked for a lane: %s", error)
            booked.retry_s = self._clock.monotonic_s() + RETRY_S
            return
        now_s = self._clock.monotonic_s()
        booked.starts.extend((now_s + wait_ms / 1000, grants.size) for wait_ms in grants.wait_ms)

    def due(self, room: int) -> tuple[dict[str, int], float]:
        """What may be claimed now, for at most `room` free workers, and until when to start it."""
        now_s = self._clock.monotonic_s()
        granted: dict[str, int] = {}
        start_by_s = float("inf")
        for lane, booked in self._lanes.items():
            while booked.starts and booked.starts[0][0] <= now_s:
                time_s, size = booked.starts.popleft()
                if now_s <= time_s + LATE_S and room > 0:
                    granted[lane] = granted.get(lane, 0) + min(size, room)
                    room -= min(size, room)
                    start_by_s = min(start_by_s, time_s + LATE_S)
        return granted, start_by_s

    def next_s(self) -> float:
        """When something is to be done for a lane: to claim, or to ask again."""
        return min(
            (b.starts[0][0] if b.starts else b.retry_s for b in self._lanes.values()),
            default=float("inf"),
        )
