"""A fleet in one process and on virtual time: production consumers over a queue in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from heatsink.bulk.actions import Actions, Context
from heatsink.bulk.batch import Batch
from heatsink.bulk.bulk import Bulk, BulkSettings
from heatsink.bulk.scaling.policy import POLICIES
from heatsink.bulk.scaling.rules import WorkerRules
from heatsink.bulk.store import PartitionLoad
from heatsink.bulk.work.consumer import Consumer, ConsumerSettings
from heatsink.client.queue.watch import QueueWatch
from heatsink.control.coordinator import Coordinator
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import SkewedClock

Handler = Callable[[Any, Context], Awaitable[None]]
ACTION = "call"
WORKERS_MAX = 256
TURN_S = 1.0


class AlwaysLeading:
    """All that a watch asks of the coordinator it belongs to."""

    term = 1


@dataclass(frozen=True)
class Fleet:
    """How a world is set up. Without a policy the workers stay as they are."""

    partitions: int = 1
    workers: int = 8
    policy: str = ""
    rules: WorkerRules = field(default_factory=WorkerRules)
    seed: int = 1


class World:
    def __init__(self, fleet: Fleet, handler: Handler, clock: SkewedClock) -> None:
        self.fleet = fleet
        self.clock = clock
        self.server = MemoryQueueServer(clock)
        actions, stores = Actions(), self.server.stores()
        actions.action(ACTION)(handler)
        settings = BulkSettings(partitions=fleet.partitions)
        self.bulk = Bulk(stores, settings, clock, Random(fleet.seed))
        self.consumer = Consumer(
            stores,
            self.bulk,
            actions,
            ConsumerSettings(fleet.workers, WORKERS_MAX),
            "lab",
            clock,
            Random(fleet.seed + 1),
        )

    def now_s(self) -> float:
        return self.clock.monotonic_s()

    def watch(self) -> QueueWatch:
        policy = POLICIES[self.fleet.policy](self.fleet.rules)
        leading = cast("Coordinator", AlwaysLeading())
        return QueueWatch(self.server.stores(), self.bulk, policy, leading, self.clock)

    async def load(self, partition: int = 0) -> PartitionLoad:
        return await self.server.queue.load(partition)

    async def until_run(self, batch: Batch) -> None:
        """Until its last item is done, to the millisecond: `Bulk.wait` looks less often."""
        while (await self.bulk.status(batch.id)).done < batch.items:
            await self.clock.sleep(0.001)

    async def until_owned(self) -> None:
        while len(self.consumer.partitions) < self.fleet.partitions:
            await self.clock.sleep(0.1)

    async def every(self, pause_s: float, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            await work()
            await self.clock.sleep(pause_s)

    @asynccontextmanager
    async def looking(self, look: Callable[[World], Awaitable[object]]) -> AsyncIterator[None]:
        """Meanwhile `look` is called every second."""
        looking = asyncio.ensure_future(self.every(TURN_S, lambda: look(self)))
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)


@asynccontextmanager
async def world(fleet: Fleet, handler: Handler, clock: SkewedClock) -> AsyncIterator[World]:
    """A world whose consumer runs, and a coordinator if there is a policy."""
    made = World(fleet, handler, clock)
    rounds = [asyncio.ensure_future(made.consumer.run())]
    if fleet.policy:
        rounds.append(asyncio.ensure_future(made.every(TURN_S, made.watch().run_once)))
    try:
        await made.until_owned()
        yield made
    finally:
        for task in rounds:
            task.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)
