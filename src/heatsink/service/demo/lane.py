"""One contender at work: starts its writes, counts how they end, remembers what it promised."""

from __future__ import annotations

import asyncio

import msgspec

from heatsink.clock import Clock
from heatsink.errors import Retryable

from .contenders import Contender, Spread
from .meter import Rates, Totals


class LaneNow(msgspec.Struct, frozen=True):
    """One lane at one moment: the last stretch's rates, the whole run's totals, its layout."""

    rates: Rates
    totals: Totals
    spread: Spread


class ReadBack(msgspec.Struct, frozen=True):
    """How a lane ended, counted by reading everything back from its store.

    `lost` was accepted and is not there; `duplicated` is there more than once.
    """

    totals: Totals
    found: int
    lost: int
    duplicated: int


class Lane:
    def __init__(self, contender: Contender, clock: Clock, tasks: asyncio.TaskGroup) -> None:
        self._contender = contender
        self._clock = clock
        self._tasks = tasks
        self.meter = contender.meter
        self._accepted: dict[bytes, bytes] = {}

    @property
    def totals(self) -> Totals:
        return self.meter.totals

    def offer(self, body: bytes) -> None:
        self.totals.offered += 1
        self._tasks.create_task(self._send(body))

    async def _send(self, body: bytes) -> None:
        begun_s = self._clock.monotonic_s()
        try:
            raw = await self._contender.append(body)
        except Retryable:
            self.totals.dropped += 1
            return
        self.meter.accept(self._clock.monotonic_s() - begun_s)
        self._accepted[body] = raw

    async def now(self) -> LaneNow:
        spread = await self._contender.spread()
        return LaneNow(self.meter.read(), msgspec.structs.replace(self.totals), spread)

    async def read_back(self) -> ReadBack:
        """Each accepted message must be there under its id, exactly once."""
        found = [row async for row in self._contender.read_back()]
        there = {(body, raw) for raw, body in found}
        missing = self._accepted.items() - there
        messages = {body for _, body in found}
        return ReadBack(
            totals=msgspec.structs.replace(self.totals),
            found=len(found),
            lost=len(missing),
            duplicated=len(found) - len(messages),
        )
