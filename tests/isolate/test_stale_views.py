"""A process that stood still does not know yet that an author's posts are pushed again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from heatsink.bulk import Actions, BulkSettings
from heatsink.client.heatsink import Heatsink
from heatsink.client.queue import Queue
from heatsink.client.settings import Settings
from heatsink.isolate import Timelines
from heatsink.isolate.policy import PULLED, PUSHED
from heatsink.stores.memory import memory_stores
from heatsink.stores.memory.homes import MemoryHomes
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import SkewedClock, run_on_virtual_time

STALL_S = 5.0


class World:
    """Two processes on the same stores, the second of which can be made to stand still."""

    def __init__(self) -> None:
        self.clock, self.other_clock = SkewedClock(), SkewedClock()
        self.homes = MemoryHomes(self.clock)
        self._stores = memory_stores(self.clock)
        self._queue = MemoryQueueServer(self.clock)

    def client(self, clock: SkewedClock) -> Heatsink:
        def queue() -> Queue:
            bulk = BulkSettings(partitions=4)
            return Queue(self._queue.stores(), self.homes, bulk, clock, Random(1))

        return Heatsink(self._stores, Settings(), clock, Random(2), queue)


async def follow(timelines: Timelines, _: World) -> None:
    await timelines.follow("zoe", "ada")


async def rebuild(timelines: Timelines, world: World) -> None:
    world.homes.lose_everything()
    await timelines.home("zoe")


@pytest.mark.parametrize(("act", "followed"), [(follow, False), (rebuild, True)])
def test_a_stale_view_hides_no_post(
    act: Callable[[Timelines, World], Awaitable[None]], followed: bool
) -> None:
    async def work() -> None:
        world = World()
        async with world.client(world.clock) as one, world.client(world.other_clock) as other:
            running = asyncio.ensure_future((worker := one.worker(Actions())).run())
            if followed:
                await one.timelines.follow("zoe", "ada")
            await one.timelines.pin("ada", PULLED, reason="a test")
            await world.clock.sleep(3.0)
            world.other_clock.stall(STALL_S)
            await one.timelines.pin("ada", PUSHED, reason="a test")
            await world.clock.sleep(3.0)
            assert (await one.timelines.post("ada", b"hello")).mode == PUSHED
            await world.clock.sleep(1.0)
            await act(other.timelines, world)
            await world.clock.sleep(STALL_S)
            assert [post.body for post in (await one.timelines.home("zoe")).posts] == [b"hello"]
            worker.stop()
            await running

    run_on_virtual_time(work())
