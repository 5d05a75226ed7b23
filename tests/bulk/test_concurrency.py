"""A bound on the handlers that run at once in one process, over all its partitions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heatsink.bulk import Context, Limit
from heatsink.bulk.settings import ConsumerSettings
from heatsink.errors import InvalidSetting

from .world import World, on_virtual_time


class Counted:
    """A world whose handlers count how many of them run."""

    def __init__(self, partitions: int = 8) -> None:
        self.world = world = World(partitions)
        self.now = self.most = 0

        @world.action()
        async def slow(item: Any, context: Context) -> None:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.1)
            self.now -= 1
            await world.note(item, context)

        @world.action(max_attempts=1, timeout_s=0.5)
        async def stuck(_item: Any, _: Context) -> None:
            await asyncio.sleep(1_000.0)


@on_virtual_time
async def test_a_process_runs_no_more_handlers_than_its_concurrency() -> None:
    counted = Counted()
    bulk = counted.world.bulk
    async with counted.world.consumer(workers=8, concurrency=3):
        batches = [await bulk.submit("slow", range(20)) for _ in range(12)]
        began_s = counted.world.clock.monotonic_s()
        for batch in batches:
            assert (await bulk.wait(batch.id, 60.0)).done == 20
    assert counted.most == 3
    took_s = counted.world.clock.monotonic_s() - began_s
    assert took_s < 1.25 * 12 * 20 * 0.1 / 3  # and uses them


@on_virtual_time
async def test_partitions_take_turns_for_the_room_of_a_process() -> None:
    counted = Counted()
    bulk = counted.world.bulk
    async with counted.world.consumer(workers=8, concurrency=1):
        large = await bulk.submit("slow", range(300), tenant="large", spread=False)
        others = [await bulk.submit("slow", [0], tenant=f"t{n}") for n in range(12)]
        for other in others:
            assert (await bulk.wait(other.id, 15.0)).done == 1
        assert (await bulk.status(large.id)).done < 200


@on_virtual_time
async def test_a_handler_that_timed_out_makes_room() -> None:
    counted = Counted()
    bulk = counted.world.bulk
    async with counted.world.consumer(workers=4, concurrency=2):
        stuck = await bulk.submit("stuck", range(8))
        after = await bulk.submit("slow", range(8))
        assert (await bulk.wait(stuck.id, 30.0)).failed == 8
        assert (await bulk.wait(after.id, 30.0)).done == 8


@on_virtual_time
async def test_items_of_a_rated_batch_wait_for_room_and_all_run() -> None:
    counted = Counted()
    bulk = counted.world.bulk
    async with counted.world.consumer(workers=8, concurrency=2):
        rated = await bulk.submit("slow", range(40), rate="100/s")
        other = await bulk.submit("slow", range(40), tenant="other")
        assert (await bulk.wait(rated.id, 30.0)).done == 40
        assert (await bulk.wait(other.id, 30.0)).done == 40
    assert counted.most == 2


@on_virtual_time
async def test_items_with_a_limit_wait_for_room_beside_others() -> None:
    counted = Counted()
    bulk = counted.world.bulk

    @counted.world.action(limits=[Limit("two", running=2, per="tenant")])
    async def limited(item: Any, context: Context) -> None:
        await asyncio.sleep(0.1)
        await counted.world.note(item, context)

    async with counted.world.consumer(workers=8, concurrency=3):
        while not (await counted.world.server.places.declared()).limits:
            await asyncio.sleep(0.1)
        batches = [
            await bulk.submit(action, range(10), tenant=f"t{number % 3}")
            for number in range(6)
            for action in ("limited", "slow")
        ]
        for batch in batches:
            assert (await bulk.wait(batch.id, 60.0)).done == 10


@on_virtual_time
async def test_a_stopped_process_gives_back_what_waits_for_room() -> None:
    counted = Counted()
    bulk = counted.world.bulk
    running = counted.world.start("one", workers=8, concurrency=1)
    batch = await bulk.submit("slow", range(100))
    while not counted.now:
        await asyncio.sleep(0.01)
    began_s = counted.world.clock.monotonic_s()
    await running.stop()
    assert counted.world.clock.monotonic_s() - began_s < 1.0
    async with counted.world.consumer("two", workers=8):
        assert (await bulk.wait(batch.id, 30.0)).done == 100
    assert len(counted.world.ran) == 100


def test_a_concurrency_of_zero_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="concurrency"):
        ConsumerSettings(concurrency=0)
