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
from typing import NamedTuple

from heatsink.bulk.rates import BOOKED_MS_MAX, LATE_MS
from heatsink.bulk.store import Grants, LaneDepth, LimitStore
from heatsink.clock import Clock
from heatsink.errors import HeatsinkError

logger = logging.getLogger("heatsink")
AHEAD_MS = int(BOOKED_MS_MAX)
LATE_S = LATE_MS / 1000
RETRY_S = 0.25
ASK_AGAIN_S = (0.01, 2.0)  # the rate may be raised meanwhile
DRIFT = 1e-4  # of two clocks, at most
ANSWERS = 16


class HomeClock:
    """Where the time of the limit's home is on the clock here: between question and answer.

    What many answers have in common says it better than one. A start in `window` is on time there,
    whatever its booking took: were each answer taken for the moment it came, starts booked before
    a slow one and after it would come closer to each other than the rate allows. If none of
    several answers was quick, the road is long for all of them, and the quickest has to do.
    """

    def __init__(self) -> None:
        self._low_s, self._high_s = float("-inf"), float("inf")
        self._learned_s = 0.0
        self._answers = 0

    def learn(self, home_s: float, asked_s: float, now_s: float) -> None:
        drift_s = DRIFT * (now_s - self._learned_s)
        low_s, high_s = asked_s - home_s, now_s - home_s
        if self._low_s - drift_s <= high_s and low_s <= self._high_s + drift_s:
            low_s = max(low_s, self._low_s - drift_s)
            high_s = min(high_s, self._high_s + drift_s)
        else:
            self._answers = 0  # the clock was set
        self._low_s, self._high_s, self._learned_s = low_s, high_s, now_s
        self._answers += 1

    @property
    def _is_exact(self) -> bool:
        return self._high_s - self._low_s <= LATE_S / 2

    @property
    def is_known(self) -> bool:
        return self._is_exact or self._answers >= ANSWERS

    def window(self, home_s: float) -> tuple[float, float]:
        """From when until when to start what was booked for a time."""
        latest_s = home_s + (self._low_s if self._is_exact else self._high_s) + LATE_S
        return home_s + self._high_s, latest_s


class Start(NamedTuple):
    from_s: float
    by_s: float
    size: int


@dataclass
class Booked:
    starts: deque[Start] = field(default_factory=deque)
    retry_s: float = 0.0
    clock: HomeClock = field(default_factory=HomeClock)


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
            grants = await self._booked(lane, waiting, booked.clock)
        except HeatsinkError as error:
            logger.info("no starts could be booked for a lane: %s", error)
            booked.retry_s = self._clock.monotonic_s() + RETRY_S
            return
        if not grants.wait_ms:
            early_s = (grants.then_ms - AHEAD_MS / 2) / 1000
            pause_s = min(max(early_s, ASK_AGAIN_S[0]), ASK_AGAIN_S[1])
            booked.retry_s = self._clock.monotonic_s() + pause_s
        for wait_ms in grants.wait_ms:
            window = booked.clock.window((grants.now_ms + wait_ms) / 1000)
            booked.starts.append(Start(*window, grants.size))

    async def _booked(self, lane: str, waiting: int, clock: HomeClock) -> Grants:
        """Nothing is booked until the home's clock is known."""
        while True:
            wanted = waiting if clock.is_known else 0
            asked_s = self._clock.monotonic_s()
            grants = await self._limits.reserve(lane, wanted, AHEAD_MS)
            clock.learn(grants.now_ms / 1000, asked_s, self._clock.monotonic_s())
            if clock.is_known and wanted:
                return grants

    def due(self, room: int) -> tuple[dict[str, int], float]:
        """What may be claimed now, for at most `room` free workers, and until when to start it."""
        now_s = self._clock.monotonic_s()
        granted: dict[str, int] = {}
        start_by_s = float("inf")
        for lane, booked in self._lanes.items():
            while booked.starts and booked.starts[0].from_s <= now_s:
                start = booked.starts[0]
                if now_s < start.by_s:
                    if room <= 0:
                        break  # a worker may become free in time
                    granted[lane] = granted.get(lane, 0) + min(start.size, room)
                    room -= min(start.size, room)
                    start_by_s = min(start_by_s, start.by_s)
                booked.starts.popleft()
        return granted, start_by_s

    def next_s(self, room: int) -> float:
        """When to claim for a lane, or to ask again. With no `room`, what is due waits for some."""
        now_s = self._clock.monotonic_s()
        firsts = [b.starts[0] for b in self._lanes.values() if b.starts]
        starts_s = [s.from_s if room > 0 or s.from_s > now_s else s.by_s for s in firsts]
        retries_s = [b.retry_s for b in self._lanes.values() if b.retry_s > now_s]
        return min([*starts_s, *retries_s], default=float("inf"))
