"""A world of the demo in memory, on virtual time: the same acts, the same code, no waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from heatsink.client.queue import Queue
from heatsink.clock import Clock
from heatsink.service.demo.act import Act, Snapshot, Verdict, Watcher
from heatsink.service.demo.traffic import Plan
from heatsink.service.demo.world import World, settings_of, world_of
from heatsink.stores.memory import memory_stores
from heatsink.stores.memory.homes import MemoryHomes
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import SkewedClock, run_on_virtual_time


@asynccontextmanager
async def memory_world(plan: Plan, clock: Clock, rng: Random) -> AsyncIterator[World]:
    bulk = settings_of(plan).bulk

    def make_queue() -> Queue:
        return Queue(MemoryQueueServer(clock).stores(), MemoryHomes(clock), bulk, clock, rng)

    async with world_of(lambda _: memory_stores(clock), make_queue, plan, clock, rng) as world:
        yield world


def play(act: Act, plan: Plan) -> tuple[Verdict, list[Snapshot]]:
    clock, told = SkewedClock(), list[Snapshot]()

    async def run() -> Verdict:
        async with memory_world(plan, clock, Random(7)) as world:
            return await act.run(world, plan, Watcher(told.append, 0.5))

    return run_on_virtual_time(run()), told
