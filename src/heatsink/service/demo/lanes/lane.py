"""One contender at work: starts its calls, counts how they end, remembers what it promised."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from heatsink.client.heatsink import Heatsink
from heatsink.clock import Clock
from heatsink.errors import Retryable

from .meter import Meter, Rates, Totals


class Spread(msgspec.Struct, frozen=True):
    """Over how many partitions new writes go, soon will, and at most ever did; and why."""

    buckets: int
    target: int
    widest: int
    reason: str


UNSPREAD = Spread(1, 1, 1, "a plain store has no other place for it")


async def spread_of(heatsink: Heatsink, key: str) -> Spread:
    explained = await heatsink.explain(key)
    layout = explained.layout
    return Spread(explained.buckets, layout.buckets, layout.max_buckets, explained.reason)


class Contender(Protocol):
    meter: Meter

    async def call(self, body: bytes) -> bytes:
        """Do it once; what it is known by. Raises `Retryable` when it gives up."""

    async def spread(self) -> Spread: ...


class LaneNow(msgspec.Struct, frozen=True):
    """One lane at one moment: the last stretch's rates, the whole run's totals, its layout."""

    rates: Rates
    totals: Totals
    spread: Spread


class Lane:
    def __init__(self, contender: Contender, clock: Clock, tasks: asyncio.TaskGroup) -> None:
        self.contender = contender
        self.meter = contender.meter
        self.accepted: dict[bytes, bytes] = {}
        self._clock = clock
        self._tasks = tasks

    @property
    def totals(self) -> Totals:
        return self.meter.totals

    def offer(self, body: bytes) -> None:
        self.totals.offered += 1
        self._tasks.create_task(self._send(body))

    async def _send(self, body: bytes) -> None:
        begun_s = self._clock.monotonic_s()
        try:
            known_as = await self.contender.call(body)
        except Retryable:
            self.totals.dropped += 1
            return
        self.meter.accept(self._clock.monotonic_s() - begun_s)
        self.accepted[body] = known_as

    async def now(self) -> LaneNow:
        spread = await self.contender.spread()
        return LaneNow(self.meter.read(), self.totals_now(), spread)

    def totals_now(self) -> Totals:
        return msgspec.structs.replace(self.totals)
