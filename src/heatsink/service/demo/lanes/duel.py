"""Two lanes side by side under one pacer, so that both get the same traffic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from heatsink.clock import Clock
from heatsink.service.demo.act import Snapshot, Watcher
from heatsink.service.demo.traffic import Pacer, Traffic

from .lane import Contender, Lane, LaneNow

DRAIN_POLL_S = 0.05


class Duel:
    def __init__(self, traffic: Traffic, clock: Clock, plain: Lane, heatsink: Lane) -> None:
        self.traffic = traffic
        self.plain = plain
        self.heatsink = heatsink
        self._clock = clock
        self._pacer = Pacer(traffic, clock)
        self._sent = 0

    @property
    def second(self) -> float:
        return round(self._pacer.second, 2)

    @property
    def leg(self) -> str:
        return self.traffic.leg_at(self._pacer.second)[0].name

    @property
    def begun_s(self) -> float:
        return self._clock.monotonic_s() - self._pacer.second

    def _offer(self, count: int) -> None:
        for _ in range(count):
            self._sent += 1
            body = f"message {self._sent}".encode()
            self.plain.offer(body)
            self.heatsink.offer(body)

    async def _run(self) -> None:
        """Offer everything, then wait for the last answers."""
        await self._pacer.run(self._offer)
        while self.plain.totals.waiting or self.heatsink.totals.waiting:
            await self._clock.sleep(DRAIN_POLL_S)

    async def fight(self, look: Callable[[], Awaitable[Snapshot]], watcher: Watcher) -> None:
        """The whole traffic on both; whoever watches gets a look every so often, and a last one."""
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch(look, watcher, self._clock))
            await self._run()
            watching.cancel()
        watcher.tell(await look())

    async def now(self) -> tuple[LaneNow, LaneNow]:
        return await self.plain.now(), await self.heatsink.now()


async def watch(look: Callable[[], Awaitable[Snapshot]], watcher: Watcher, clock: Clock) -> None:
    while True:
        await clock.sleep(watcher.every_s)
        watcher.tell(await look())


@asynccontextmanager
async def duel_of(
    plain: Contender, heatsink: Contender, traffic: Traffic, clock: Clock
) -> AsyncIterator[Duel]:
    async with asyncio.TaskGroup() as tasks:
        lanes = Lane(plain, clock, tasks), Lane(heatsink, clock, tasks)
        yield Duel(traffic, clock, *lanes)
