"""The two ends of the news: the leader tells, everybody else listens.

A process that hears nothing asks the store instead, so seldom that the whole fleet together does
not ask more often than `ASKS_S`. So that it can still place ids between two such questions, the
closed time is then kept further ahead of now: as far as it has been silent, until that is twice
the time between two questions. New epochs begin that much later: without news, layouts stand still.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

from heatsink.clock import Clock
from heatsink.errors import HeatsinkError, Retryable

from .decision import LogEntry, Meta
from .news import News, NewsStore
from .rules import HORIZON_MS
from .store import RegistryStore

FOLLOW_S = 0.1
ASKS_S = 200.0  # questions to the store per second, of all who follow without news
STANDBY_ASKS_S = 100.0  # and of all coordinators that wait to lead
LISTENS_S = 50_000.0  # questions to the relay per second, of the whole fleet
LISTEN_S_MAX = 0.2
STEADY_S = 30.0  # the store is asked this seldom while news comes: for the clock, and for META
SAY_AGAIN = 20  # entries that a new leader repeats: its predecessor may have died before telling
PAUSE_S = 0.5


class Listener:
    """Takes news in, and knows for how long there was none."""

    def __init__(self, news: NewsStore, clock: Clock, rng: Random) -> None:
        self._news = news
        self._clock = clock
        self._rng = rng
        self._closed_ms = 0
        self._heard_s = clock.monotonic_s()
        self._asked_s = clock.monotonic_s()
        self._jitter = 1.0
        self.told_s: float | None = None
        """When a leader told news last, on the monotonic clock; None: not yet."""

    async def newest(self, after: int, incarnation: str) -> News | None:
        """News of our incarnation that is newer than all before; None if there is none."""
        try:
            news = await self._news.read(after)
        except HeatsinkError:
            return None
        if news is None or not self._is_credible(news, incarnation):
            return None
        is_first = not self._closed_ms  # which may be old
        self._closed_ms, self._heard_s = news.closed_ms, self._clock.monotonic_s()
        self.told_s = None if is_first else self._heard_s
        return news

    async def check(self) -> None:
        """A relay that is down will be back; one that refuses our login is told at once."""
        with suppress(Retryable):
            await self._news.read(0)

    def _is_credible(self, news: News, incarnation: str) -> bool:
        return news.incarnation == incarnation and news.closed_ms > self._closed_ms

    def pause_s(self, servers: int) -> float:
        """How long to wait before listening again."""
        return max(FOLLOW_S, min(servers / LISTENS_S, LISTEN_S_MAX))

    def should_ask(self, servers: int, well_informed: bool) -> bool:
        """Whether it is this process's turn to ask the store."""
        interval_s = max(STEADY_S if well_informed else FOLLOW_S, servers / ASKS_S)
        return self._clock.monotonic_s() - self._asked_s >= interval_s * self._jitter

    def note_asked(self) -> None:
        self._asked_s = self._clock.monotonic_s()
        self._jitter = self._rng.uniform(0.5, 1.5)

    def horizon_ms(self, servers: int) -> int:
        """How far ahead of now the closed time should be."""
        silent_s = self._clock.monotonic_s() - self._heard_s
        return max(HORIZON_MS, int(1000 * min(silent_s, 2 * servers / ASKS_S)))

    def standby_s(self, servers: int, at_least_s: float) -> float:
        """How long a coordinator that does not lead waits before it looks again."""
        return max(at_least_s, self._rng.uniform(0.5, 1.5) * servers / STANDBY_ASKS_S)


class Teller:
    """Publishes what the store has committed. A relay that fails is left alone for a moment."""

    def __init__(self, news: NewsStore, store: RegistryStore, clock: Clock) -> None:
        self._news = news
        self._store = store
        self._clock = clock
        self._told: int | None = None
        self._resume_s = float("-inf")

    async def tell(self, meta: Meta) -> None:
        if self._clock.monotonic_s() < self._resume_s:
            return
        try:
            await self._news.publish(meta, await self._untold(meta.version))
        except HeatsinkError:
            self._told = None
            self._resume_s = self._clock.monotonic_s() + PAUSE_S
        else:
            self._told = meta.version

    async def _untold(self, version: int) -> list[LogEntry]:
        told = max(version - SAY_AGAIN, 0) if self._told is None else self._told
        return await self._store.log(told, version) if told < version else []
