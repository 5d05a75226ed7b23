"""A small social network on virtual time, whose homes take time to write and are counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

from heatsink.bulk import Actions, BulkSettings
from heatsink.client.heatsink import Heatsink
from heatsink.client.queue import Queue
from heatsink.client.settings import Settings
from heatsink.isolate import Timelines, TimelineSettings
from heatsink.isolate.store import HomeEntry
from heatsink.stores.memory import memory_stores
from heatsink.stores.memory.homes import MemoryHomes
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import SkewedClock

WRITE_S = 0.001
WORKERS = 4


class SlowHomes(MemoryHomes):
    """Homes whose writes take time and are counted, by the author of what is written."""

    def __init__(self, clock: SkewedClock) -> None:
        super().__init__(clock)
        self.writes = Counter[str]()

    async def push(self, users: Sequence[str], entry: HomeEntry) -> None:
        self.writes[entry.author] += len(users)
        await self._clock.sleep(WRITE_S * len(users))
        await super().push(users, entry)


class Network:
    def __init__(self, settings: TimelineSettings, seed: int) -> None:
        self.clock = SkewedClock()
        self.homes = SlowHomes(self.clock)
        queue, rng = MemoryQueueServer(self.clock).stores(), Random(seed)
        bulk = BulkSettings(partitions=1)
        self._client = Heatsink(
            memory_stores(self.clock),
            Settings(timelines=settings),
            self.clock,
            rng,
            lambda: Queue(queue, self.homes, bulk, self.clock, rng),
        )

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[Timelines]:
        async with self._client as hs:
            worker = hs.worker(Actions(), workers=WORKERS, workers_max=WORKERS)
            running = asyncio.ensure_future(worker.run())
            yield hs.timelines
            worker.stop()
            await running

    async def until_seen(self, user: str, author: str) -> float:
        """From posting to the moment that the user's home shows it."""
        timelines, began_s = self._client.timelines, self.clock.monotonic_s()
        post = await timelines.post(author, b"hello")
        while not any(p.id == post.id for p in (await timelines.home(user, limit=20)).posts):
            await self.clock.sleep(0.05)
        return self.clock.monotonic_s() - began_s
