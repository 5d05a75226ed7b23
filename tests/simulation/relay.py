"""A Redis of which nothing can be relied on: down, slow, wiped, set back, and not ours alone."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from random import Random

from msgspec import structs

from heatsink.registry.news import News
from heatsink.stores.memory.bus import MemoryBus
from heatsink.stores.memory.news import MemoryNews

from .nodes import Node


class UnreliableRedis:
    def __init__(self, rng: Random) -> None:
        self.news = MemoryNews()
        self.bus = MemoryBus()
        self._nodes: list[Node] = []
        self._rng = rng

    def reach(self, nodes: list[Node]) -> None:
        self._nodes = nodes

    async def make_trouble(self) -> None:
        trouble = self._rng.choice(
            (self._go_down, self._slow_down, self._wipe, self._lag_and_fail_over, self._intrude)
        )
        await trouble()

    async def _go_down(self) -> None:
        for node in self._nodes:
            node.relay_faults.cut = True
        await asyncio.sleep(self._rng.uniform(0.2, 6.0))
        for node in self._nodes:
            node.relay_faults.cut = False

    async def _slow_down(self) -> None:
        """Some of it is late, some is given up on and lands all the same."""
        for node in self._nodes:
            node.relay_faults.latency_s = (0.05, 0.5)
            node.relay_faults.late = 0.1
        await asyncio.sleep(self._rng.uniform(0.2, 4.0))
        for node in self._nodes:
            node.relay_faults.latency_s = (0.001, 0.02)
            node.relay_faults.late = 0.0

    async def _wipe(self) -> None:
        self.news.pair, self.news.log = None, {}
        await self.bus.receive()

    async def _lag_and_fail_over(self) -> None:
        """A replica falls behind and is promoted: everything since is gone."""
        pair, log = self.news.pair, deepcopy(self.news.log)
        await asyncio.sleep(self._rng.uniform(0.2, 5.0))
        self.news.pair, self.news.log = pair, log

    async def _intrude(self) -> None:
        """Another deployment, misconfigured, speaks under our prefix."""
        for _ in range(self._rng.randrange(1, 20)):
            pair = self.news.pair or News(0, 0, "")
            theirs = pair.closed_ms + self._rng.randrange(-2_000, 2_000)
            version = max(pair.version - self._rng.randrange(3), 0)
            self.news.pair = structs.replace(
                pair, closed_ms=theirs, version=version, incarnation="theirs"
            )
            await asyncio.sleep(self._rng.uniform(0.01, 0.2))

    def heal(self) -> None:
        for node in self._nodes:
            node.relay_faults.heal()
            node.relay_faults.latency_s = (0.001, 0.02)
