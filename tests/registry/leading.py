"""A leader of a large fleet, and one follower, on virtual time: is news prompt and never missing?

Production parts: both registries with their news, the coordinator and its lease. The leader stalls
for seconds at random moments, or Redis does not answer for a while.

- While Redis answers, the closed time is at most a little ahead of now: a decision takes effect
  only after it. A process that hears nothing during a stall of the leader may move the closed time
  further, as it cannot know that the leader will come back. This must end a few seconds after the
  stall.
- The follower has every closed time within a second of its commit, unless Redis is down.
- While Redis is down for long, the closed time is kept far ahead, since the follower rarely reads
  META.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any
from unittest.mock import patch

from heatsink.coordinator.lease import Lease
from heatsink.coordinator.loops import Coordinator
from heatsink.errors import Unavailable
from heatsink.registry.closed_time import HORIZON_MS
from heatsink.registry.news import FAIL_OVER_S, FOLLOW_S, NewsListener, pushed_s, tells_s
from heatsink.registry.registry import Registry
from heatsink.stores.memory.data import MemoryRegistry
from heatsink.stores.memory.messages import MemoryNews
from heatsink.testing import SkewedClock, run_on_virtual_time
from tests.planted import Bugs

from .test_registry import FOUNDING

BUGS = bug = Bugs()
LASTS_S, WARM_UP_S, LOOK_S = 60.0, 3.0, 0.05
LATE_S_MAX = 1.0
STALL_S_MAX = 2.5
CALM_S = FAIL_OVER_S + STALL_S_MAX + 0.5  # after a stall, before all is as it was
SLACK_S = 0.2


class Violation(AssertionError):
    """News was late, the closed time was too far ahead, or not far enough."""


class Relay(MemoryNews):
    """Can be down."""

    is_down = False

    async def publish(self, log: str, entries: Mapping[int, bytes], pair: bytes) -> None:
        self._check()
        await super().publish(log, entries, pair)

    async def pair(self, servers: int = 1, /) -> bytes | None:
        self._check()
        return await super().pair(servers)

    def _check(self) -> None:
        if self.is_down:
            raise Unavailable("Redis is down")


class Run:
    """One leader and one follower with random faults."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.servers = rng.choice((1_000, 5_000, 10_000, 20_000))
        self.clock, self.leaders = SkewedClock(), SkewedClock()
        self.store, self.relay = MemoryRegistry(self.clock), Relay()
        self.events: Counter[str] = Counter()
        self.has_outage = rng.random() < 0.4
        self.down_s = 0.0
        """For how long Redis has been down."""
        self.stalled_until_s = 0.0
        self.commits: deque[tuple[float, int]] = deque()  # that the follower does not know yet

    async def play(self) -> Counter[str]:
        listening = (Random(self.rng.random()) for _ in range(2))
        leader, self.follower = (
            Registry(self.store, clock, self.relay, rng)
            for clock, rng in zip((self.leaders, self.clock), listening, strict=True)
        )
        await leader.open(FOUNDING)
        await self.follower.open(FOUNDING)
        lease = Lease(self.store, "leader", self.leaders, count_servers=lambda: self.servers)
        coordinator = Coordinator(leader, lease, self.leaders, [])
        work = (coordinator.run(), leader.follow(), self.follower.follow())
        running = [asyncio.ensure_future(each) for each in work]
        try:
            await self._watch()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return self.events

    async def _watch(self) -> None:
        outage_s = self.rng.uniform(8, 20)
        outage = outage_s, outage_s + self.rng.uniform(3, 12)
        while (now_s := self.clock.monotonic_s()) < LASTS_S:
            await self.clock.sleep(LOOK_S)
            self.relay.is_down = self.has_outage and outage[0] <= now_s < outage[1]
            self.down_s = now_s - outage[0] if self.relay.is_down else 0.0
            if now_s > WARM_UP_S and self.rng.random() < LOOK_S / 12 and not self.has_outage:
                self._stall(self.rng.uniform(0.3, STALL_S_MAX))
            if now_s > WARM_UP_S:
                await self._check(now_s)

    def _stall(self, seconds: float) -> None:
        self.events["stalls"] += 1
        self.leaders.stall(seconds)
        self.stalled_until_s = max(self.stalled_until_s, self.clock.monotonic_s() + seconds)

    async def _check(self, now_s: float) -> None:
        closed_ms = (await self.store.meta()).meta.closed_ms
        ahead_s = closed_ms / 1000 - self.clock.now_s()
        promised_s = HORIZON_MS / 1000 + 2 * (tells_s(self.servers) - FOLLOW_S)
        if not self.has_outage:
            is_calm = now_s > self.stalled_until_s + CALM_S
            self.events["calm looks"] += is_calm
            if is_calm and ahead_s > promised_s + SLACK_S:
                raise Violation(f"the closed time is {ahead_s:.1f} s ahead, for no reason")
            self._check_follower(now_s, closed_ms)
        elif self.down_s > pushed_s(self.servers) + tells_s(self.servers) + 1.0:
            self.events["outages"] += 1
            if ahead_s < min(FAIL_OVER_S, 2 * self.servers / 200) / 2:
                raise Violation(f"without Redis, the closed time is only {ahead_s:.1f} s ahead")

    def _check_follower(self, now_s: float, closed_ms: int) -> None:
        if not self.commits or self.commits[-1][1] < closed_ms:
            self.commits.append((now_s, closed_ms))
        while self.commits and self.commits[0][1] <= self.follower.view.horizon_ms:
            self.commits.popleft()
        since_s = max(self.commits[0][0], self.stalled_until_s) if self.commits else now_s
        if now_s - since_s > LATE_S_MAX:
            raise Violation(f"a closed time came {now_s - since_s:.1f} s late")


def simulate(seed: int) -> Counter[str]:
    """Play one run. Raises `Violation` if news was not as promised."""
    return run_on_virtual_time(Run(seed).play())


@bug
def a_stall_taken_for_silence() -> Iterator[None]:
    """The leader counts the time since it heard a new closed time, whether it published or not."""
    silent_s = NewsListener._silent_s

    def since_heard(self: NewsListener, servers: int, _leads: bool) -> float:
        return silent_s(self, servers, leads=False)

    with patch.object(NewsListener, "_silent_s", since_heard):
        yield


@bug
def a_leader_that_counts_no_silence() -> Iterator[None]:
    """It keeps the closed time as little ahead as if its news arrived."""
    silent_s = NewsListener._silent_s

    def none_if_leading(self: NewsListener, servers: int, leads: bool) -> float:
        return 0.0 if leads else silent_s(self, servers, leads)

    with patch.object(NewsListener, "_silent_s", none_if_leading):
        yield


@bug
def a_publication_that_stays_unheard() -> Iterator[None]:
    """What the leader has heard is not crossed out."""

    def since_first(self: Any, _servers: int, leads: bool) -> float:
        since_s = self._published[0][1] if leads and self._published else self._heard_s
        return float(self._clock.monotonic_s() - since_s)

    with patch.object(NewsListener, "_silent_s", since_first):
        yield


@bug
def news_once_in_three_seconds() -> Iterator[None]:
    """The leader saves publications."""
    with patch("heatsink.registry.news.tells_s", lambda _servers: 3.0):
        yield
