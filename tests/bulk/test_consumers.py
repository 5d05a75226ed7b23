"""Consumers that come, go and die; workers that become more and fewer."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

from heatsink.bulk import Actions, Context
from heatsink.bulk.actions import Action
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import Decision

from .world import Running, World, on_virtual_time, stubborn_sleep


def slow_world(partitions: int, seconds: float = 0.1) -> World:
    world = World(partitions)

    @world.action()
    async def slow(item: Any, context: Context) -> None:
        await asyncio.sleep(seconds)
        await world.note(item, context)

    return world


def target(workers: int) -> Decision:
    return Decision(Subject(Kind.WORKERS, "0"), "workers", workers, "by hand")


def owned(consumers: list[Running]) -> list[int]:
    return sorted(partition for each in consumers for partition in each.consumer.partitions)


@on_virtual_time
async def test_consumers_share_the_partitions_evenly_and_each_has_one_owner() -> None:
    world = slow_world(16)
    consumers = [world.start(f"c{n}") for n in range(3)]
    batches = [await world.bulk.submit("slow", range(200)) for _ in range(10)]
    await asyncio.sleep(10.0)
    assert owned(consumers) == list(range(16))
    assert sorted(len(each.consumer.partitions) for each in consumers) == [5, 5, 6]
    consumers.append(world.start("c3"))
    await asyncio.sleep(10.0)
    assert owned(consumers) == list(range(16))
    assert {len(each.consumer.partitions) for each in consumers} == {4}
    await consumers.pop(0).stop()
    await asyncio.sleep(5.0)
    assert owned(consumers) == list(range(16))
    for batch in batches:
        assert (await world.bulk.wait(batch.id, 600.0)).done == 200
        assert world.items_run(batch.id) == list(range(200))
    for each in consumers:
        await each.stop()


@on_virtual_time
async def test_a_consumer_that_stops_finishes_what_runs_and_gives_the_rest_back_at_once() -> None:
    world = slow_world(1, 0.5)
    first = world.start("first", workers=4, grace_s=5.0)
    batch = await world.bulk.submit("slow", range(40))
    await asyncio.sleep(2.2)
    started_s = world.clock.monotonic_s()
    await first.stop()
    assert world.clock.monotonic_s() - started_s < 1.0
    queue = world.server.queue.partitions[0]
    assert (len(queue.leases), queue.owner) == (0, "")
    async with world.consumer("second", workers=4):
        assert (await world.bulk.wait(batch.id, 30.0)).done == 40
    assert world.items_run(batch.id) == list(range(40))
    assert {attempt for _, _, attempt in world.ran} == {1}


@on_virtual_time
async def test_what_does_not_finish_in_the_grace_is_given_back_uncounted() -> None:
    world = slow_world(1, 30.0)
    first = world.start("first", workers=2, grace_s=2.0)
    batch = await world.bulk.submit("slow", range(2))
    await asyncio.sleep(5.0)
    await first.stop()
    async with world.consumer("second", workers=2):
        assert (await world.bulk.wait(batch.id, 40.0)).done == 2
    assert sorted(world.ran) == [(batch.id, 0, 1), (batch.id, 1, 1)]


@on_virtual_time
async def test_a_dead_consumers_items_run_again_elsewhere_after_its_lease() -> None:
    world = slow_world(2, 1.0)
    first = world.start("first", workers=4, lease_s=3.0, member_s=3.0)
    batch = await world.bulk.submit("slow", range(20))
    await asyncio.sleep(1.5)
    first.kill()
    async with world.consumer("second", workers=4, lease_s=3.0, member_s=3.0):
        assert (await world.bulk.wait(batch.id, 40.0)).done == 20
    runs = Counter(item for _, item, _ in world.ran)
    assert set(runs) == set(range(20))
    assert max(runs.values()) <= 2


@on_virtual_time
async def test_an_item_that_kills_its_workers_fails_after_three_of_them() -> None:
    world = World(1)
    victims: list[Running] = []

    @world.action()
    async def deadly(item: int, context: Context) -> None:
        await world.note(item, context)
        if item == 3:
            victims[-1].kill()
            await asyncio.sleep(1_000.0)

    batch = await world.bulk.submit("deadly", range(12))
    for life in range(5):
        victims.append(world.start(f"c{life}", workers=4, lease_s=1.0, member_s=1.0))
        await asyncio.sleep(8.0)
    progress = await world.bulk.wait(batch.id, 20.0)
    reasons = [f.reason async for f in world.bulk.failures(batch.id)]
    assert (progress.done, progress.failed) == (11, 1)
    assert reasons == ["the worker died 3 times while the item ran"]
    assert sum(each.process.is_dead for each in victims) == 3
    for each in victims:
        if not each.process.is_dead:
            await each.stop()


@on_virtual_time
async def test_a_worker_that_lost_its_lease_changes_nothing() -> None:
    world = World(1)

    @world.action()
    async def stubborn(_item: int, _: Context) -> None:
        await stubborn_sleep(4.0)

    cut_off = world.start("first", workers=1, lease_s=2.0, member_s=1.0)
    batch = await world.bulk.submit("stubborn", [7])
    await asyncio.sleep(1.0)
    cut_off.process.faults.cut = True
    async with world.consumer("second", workers=1, lease_s=2.0, member_s=1.0):
        await asyncio.sleep(4.5)
        cut_off.process.faults.heal()
        await asyncio.sleep(0.5)
        status = await world.bulk.status(batch.id)
        assert (status.done, status.running) == (0, 1)
        assert (await world.bulk.wait(batch.id, 20.0)).done == 1
    assert world.server.queue.partitions[0].tally["done"] == 1
    await cut_off.stop()


@on_virtual_time
async def test_a_handler_is_cancelled_before_the_lease_of_its_item_ends() -> None:
    """So it does not overlap with the same item in another worker."""
    world, ran = World(1), list[tuple[float, float]]()

    @world.action()
    async def long(_item: int, _: Context) -> None:
        began_s = world.clock.monotonic_s()
        try:
            await asyncio.sleep(20.0)
        finally:
            ran.append((began_s, world.clock.monotonic_s()))

    cut_off = world.start("first", workers=1, lease_s=4.0, member_s=2.0)
    batch = await world.bulk.submit("long", [7])
    await asyncio.sleep(6.0)  # renewed meanwhile
    assert not ran
    cut_off.process.faults.cut = True
    async with world.consumer("second", workers=1, lease_s=4.0, member_s=2.0):
        assert (await world.bulk.wait(batch.id, 60.0)).done == 1
    (first_began_s, first_ended_s), (second_began_s, second_ended_s) = ran
    assert first_ended_s <= second_began_s
    assert first_ended_s - first_began_s < 6.0 + 4.0
    assert second_ended_s - second_began_s == pytest.approx(20.0)
    cut_off.process.faults.heal()
    await cut_off.stop()


@on_virtual_time
async def test_a_handler_in_a_thread_is_not_cancelled_with_the_lease_of_its_item() -> None:
    """It cannot be. Its outcome counts if nobody else has got the item meanwhile."""
    world, is_cancelled = World(1), False
    actions = Actions()

    async def long(_item: int, _: Context) -> None:  # in place of a thread, on virtual time
        nonlocal is_cancelled
        try:
            await asyncio.sleep(6.0)
        except asyncio.CancelledError:
            is_cancelled = True
            raise

    world.actions = actions.and_also(Action("long", long, is_async=False))
    async with world.consumer(workers=1, lease_s=2.0, member_s=1.0) as consumer:
        batch = await world.bulk.submit("long", [7])
        await asyncio.sleep(1.0)
        pump = consumer._pumps[0]
        with patch.object(pump, "flush", AsyncMock(return_value=False)):
            await asyncio.sleep(3.0)
        assert (await world.bulk.wait(batch.id, 60.0)).done == 1
    assert not is_cancelled


@on_virtual_time
async def test_workers_become_more_and_fewer_while_they_work() -> None:
    world = slow_world(1, 1.0)
    running, most = 0, 0

    @world.action()
    async def counted(_item: int, _: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.5)
        running -= 1

    async def peak() -> int:
        nonlocal most
        await asyncio.sleep(3.0)
        most = 0
        await asyncio.sleep(3.0)
        return most

    soft = world.server.stores().soft
    first = world.start("first", workers=3, workers_max=20)
    batch = await world.bulk.submit("counted", range(2_000))
    assert await peak() == 3
    await soft.publish([target(12)], 1)
    assert await peak() == 12
    await soft.publish([target(2)], 1)
    assert await peak() == 2
    await soft.publish([target(1_000)], 2)
    assert await peak() == 20
    await soft.publish([target(1)], 1)  # a deposed leader
    assert await peak() == 20
    first.kill()
    second = world.start("second", workers=3, workers_max=20)
    await asyncio.sleep(20.0)
    assert second.consumer.workers == {0: 20}
    assert (await world.bulk.wait(batch.id, 600.0)).done == 2_000
    await second.stop()


@on_virtual_time
async def test_the_number_of_partitions_changes_at_run_time_and_nothing_is_lost() -> None:
    world = slow_world(4, 0.05)
    consumers = [world.start(f"c{n}") for n in range(2)]
    batches = []
    for partitions in (4, 12, 3, 1, 20, 5):
        assert (await world.bulk.repartition(partitions)).partitions == partitions
        batches += [await world.bulk.submit("slow", range(150)) for _ in range(4)]
        await asyncio.sleep(0.5)
    for batch in batches:
        assert (await world.bulk.wait(batch.id, 600.0)).done == 150
        assert world.items_run(batch.id) == list(range(150))
    assert {part.partition < 5 for part in batches[-1].parts} == {True}
    assert owned(consumers) == list(range(20))
    for each in consumers:
        await each.stop()


@on_virtual_time
async def test_a_rollout_to_partitions_loses_nothing_in_any_of_its_phases() -> None:
    world = slow_world(4)
    old_bulk = world.bulk_of(world.process("old"), partitioned=False)
    batches = []

    async def submit(bulk: Any) -> None:
        for _ in range(5):
            batches.append(await bulk.submit("slow", range(60), on_done="note"))
            await asyncio.sleep(0.2)

    old = [world.start(f"old{n}", partitioned=False) for n in range(2)]
    await submit(old_bulk)
    new = [world.start(f"new{n}") for n in range(3)]
    await submit(old_bulk)
    await asyncio.gather(submit(old_bulk), submit(world.bulk))
    await submit(world.bulk)
    assert sorted(len(each.consumer.partitions) for each in old) == [0, 1]
    assert owned(new) == list(range(4))
    for batch in batches:
        assert (await world.bulk.wait(batch.id, 600.0)).done == 60
    await asyncio.sleep(3.0)
    for each in old:
        await each.stop()
    await submit(world.bulk)
    for batch in batches:
        assert (await world.bulk.wait(batch.id, 600.0)).done == 60
        assert world.items_run(batch.id) == list(range(60))
    await asyncio.sleep(5.0)
    told = [id for id, _, _ in world.ran if ":done:" in id]
    assert sorted(told) == sorted(f"{batch.id}:done:0" for batch in batches)
    for each in new:
        await each.stop()
