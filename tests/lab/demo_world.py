"""A world of the demo in memory, on virtual time: the same acts, the same code, no waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from heatsink.client.queue import Queue
from heatsink.lab.demo.act import Act, ActSnapshot, ActVerdict, Watcher
from heatsink.lab.demo.traffic import TrafficPlan
from heatsink.lab.demo.world import DemoWorld, settings_of, world_of
from heatsink.primitives.clock import Clock
from heatsink.stores.memory import memory_stores
from heatsink.stores.memory.messages import MemoryHomes
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import SkewedClock, run_on_virtual_time


@asynccontextmanager
async def memory_world(plan: TrafficPlan, clock: Clock, rng: Random) -> AsyncIterator[DemoWorld]:
    bulk = settings_of(plan).bulk

    def make_queue() -> Queue:
        return Queue(MemoryQueueServer(clock).stores(), MemoryHomes(clock), bulk, clock, rng)

    async with world_of(lambda _: memory_stores(clock), make_queue, plan, clock, rng) as world:
        yield world


def play(act: Act, plan: TrafficPlan) -> tuple[ActVerdict, list[ActSnapshot]]:
    clock, told = SkewedClock(), list[ActSnapshot]()

    async def run() -> ActVerdict:
        async with memory_world(plan, clock, Random(7)) as world:
            return await act.run(world, plan, Watcher(told.append, 0.5))

    return run_on_virtual_time(run()), told
