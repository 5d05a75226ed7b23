"""A queue server whose clock can be set, and processes whose clocks go on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from heatsink.bulk.store import QueueStores
from heatsink.testing import ManualClock

from .driver import Driver

HOUR_S = 3600.0


class ServerClock:
    """Goes like the test's clock, off by what it was set by."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.offset_s = 0.0

    def now_s(self) -> float:
        return self._clock.now_s() + self.offset_s

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


@dataclass
class Stepped:
    """`driver` is a process that is there from the beginning; `join` opens the queue in another."""

    driver: Driver
    server: ServerClock
    join: Callable[[ManualClock], AbstractAsyncContextManager[QueueStores]]

    @property
    def stores(self) -> QueueStores:
        return self.driver.stores

    def step(self, seconds: float) -> None:
        self.server.offset_s += seconds
