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
from heatsink.primitives.ids import Uuid7
from heatsink.registry.decisions import BUCKETS as IN_FORCE
from heatsink.registry.decisions import PIN, for_key
from heatsink.registry.registry import Registry
from heatsink.stores.memory import memory_stores
from heatsink.stores.memory.messages import MemoryHomes
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import SkewedClock, run_on_virtual_time
from heatsink.timelines import Timelines
from heatsink.timelines.modes import BUCKETS, mode_of
from heatsink.timelines.policy import PULLED, PUSHED

from .losses import lose_everything

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
    lose_everything(world.homes)
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


async def begin_at_once(registry: Registry, author: str, mode: str) -> None:
    """What the leader makes of a pin, without the moment that it takes to see it."""
    key = mode_of(author).text
    decisions = [for_key(key, setting, BUCKETS[mode], "a test") for setting in (PIN, IN_FORCE)]
    await registry.publish(decisions, term=registry.meta.term)


async def read(timelines: Timelines, _: World) -> None:
    await timelines.home("zoe")


@pytest.mark.parametrize(
    ("act", "before", "after"),
    [(rebuild, PULLED, PUSHED), (read, PUSHED, PULLED)],
)
def test_a_mode_that_begins_at_the_very_horizon_of_a_stale_view_is_asked_for(
    act: Callable[[Timelines, World], Awaitable[None]], before: str, after: str
) -> None:
    """A view is final below its horizon, and not at it."""

    async def work() -> None:
        world = World()
        async with world.client(world.clock) as one, world.client(world.other_clock) as other:
            # Who finds nothing at all renews the view: so there is something everywhere.
            await one.timelines.post("ada", b"early")
            await one.timelines.follow("zoe", "ada")
            for mode in (PULLED, before):
                await one.timelines.pin("ada", mode, reason="a test")
                await world.clock.sleep(3.0)
            await one.timelines.home("zoe")
            await other.parts.registry.renew()
            world.other_clock.stall(STALL_S)
            await begin_at_once(one.parts.registry, "ada", after)
            start_ms = one.parts.registry.view.layout(mode_of("ada").text).epochs[-1].start_ms
            assert start_ms == other.parts.registry.view.horizon_ms
            id = Uuid7().value(Uuid7().from_parts(start_ms, 1, 1))
            assert (await one.timelines.post("ada", b"hello", id=id)).mode == after
            assert other.parts.registry.view.horizon_ms == start_ms  # nobody told it meanwhile
            await act(other.timelines, world)
            page = await other.timelines.home("zoe")
            assert [post.body for post in page.posts] == [b"hello", b"early"]

    run_on_virtual_time(work())
