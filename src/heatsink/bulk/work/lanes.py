"""Rate-limited lanes of one partition: starts are booked at the limit's home, then claimed.

Nothing is claimed before its time, and a start that could not be used within `LATE_MS` of it is
forfeited, so a rate holds whatever happens here. When exactly the home counted its answer from is
not known, only that it was between question and answer: a start must be in time either way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from heatsink.bulk.rates import LATE_MS
from heatsink.bulk.store import LaneDepth, LimitStore
from heatsink.clock import Clock
from heatsink.errors import HeatsinkError

logger = logging.getLogger("heatsink")
AHEAD_MS = 1_000
LATE_S = LATE_MS / 1000
RETRY_S = 0.25


class Start(NamedTuple):
    from_s: float
    by_s: float
    size: int


@dataclass
class Booked:
    starts: deque[Start] = field(default_factory=deque)
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
        booked, asked_s = self._lanes[lane], self._clock.monotonic_s()
        try:
            grants = await self._limits.reserve(lane, waiting, AHEAD_MS)
        except HeatsinkError as error:
            logger.info("no starts could be booked for a lane: %s", error)
            booked.retry_s = self._clock.monotonic_s() + RETRY_S
            return
        now_s = self._clock.monotonic_s()
        if now_s - asked_s > LATE_S:
            logger.warning(
                "starts of a rate-limited lane were forfeited: the queue took %.0f ms to answer, "
                "which must be less than %.0f",
                (now_s - asked_s) * 1000,
                LATE_MS,
            )
        waits_s = [wait_ms / 1000 for wait_ms in grants.wait_ms]
        booked.starts.extend(
            Start(now_s + wait_s, asked_s + wait_s + LATE_S, grants.size) for wait_s in waits_s
        )

    def due(self, room: int) -> tuple[dict[str, int], float]:
        """What may be claimed now, for at most `room` free workers, and until when to start it."""
        now_s = self._clock.monotonic_s()
        granted: dict[str, int] = {}
        start_by_s = float("inf")
        for lane, booked in self._lanes.items():
            while booked.starts and booked.starts[0].from_s <= now_s:
                start = booked.starts.popleft()
                if now_s <= start.by_s and room > 0:
                    granted[lane] = granted.get(lane, 0) + min(start.size, room)
                    room -= min(start.size, room)
                    start_by_s = min(start_by_s, start.by_s)
        return granted, start_by_s

    def next_s(self) -> float:
        """When to claim for a lane, or to ask again. A lane without starts waits for a worker."""
        now_s = self._clock.monotonic_s()
        starts_s = [b.starts[0].from_s for b in self._lanes.values() if b.starts]
        retries_s = [b.retry_s for b in self._lanes.values() if b.retry_s > now_s]
        return min([*starts_s, *retries_s], default=float("inf"))
