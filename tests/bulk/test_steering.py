"""Pause, resume, cancel, try again, and how a batch's end is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heatsink.bulk import Context, Fail
from heatsink.errors import Conflict, Overloaded

from .world import World, on_virtual_time


def slow_world(partitions: int = 4) -> World:
    world = World(partitions)

    @world.action()
    async def slow(item: Any, context: Context) -> None:
        await asyncio.sleep(0.1)
        await world.note(item, context)

    return world


@on_virtual_time
async def test_a_paused_batch_stands_still_until_it_is_resumed() -> None:
    world = slow_world()
    async with world.consumer(workers=2):
        batch = await world.bulk.submit("slow", range(100))
        await asyncio.sleep(1.0)
        await world.bulk.pause(batch.id)
        await asyncio.sleep(1.0)
        paused = await world.bulk.status(batch.id)
        await asyncio.sleep(60.0)
        assert (await world.bulk.status(batch.id)) == paused
        assert (paused.state, paused.running, paused.eta_s) == ("paused", 0, None)
        await world.bulk.resume(batch.id)
        assert (await world.bulk.wait(batch.id, 60.0)).done == 100
    assert world.items_run(batch.id) == list(range(100))


@on_virtual_time
async def test_a_batch_that_was_paused_before_its_release_does_not_run() -> None:
    world = World()
    process = world.process("doomed")
    bulk = world.bulk_of(process)

    async def die(*_: Any) -> None:
        process.kill()
        await asyncio.sleep(0)

    vars(bulk.reconciler)["tell_parts"] = die
    process.run(bulk.submit("note", range(10), id="x"))
    await asyncio.sleep(1.0)
    await world.bulk.pause("x")
    async with world.consumer():
        await asyncio.sleep(120.0)
        assert (world.ran, world.staged()) == ([], [])
        await world.bulk.resume("x")
        assert (await world.bulk.wait("x", 10.0)).done == 10


@on_virtual_time
async def test_a_wish_that_lands_late_does_not_undo_a_newer_one() -> None:
    world = slow_world()
    async with world.consumer(workers=1):
        batch = await world.bulk.submit("slow", range(100))
        await world.bulk.pause(batch.id)
        version = (await world.server.batches.get(batch.id)).version  # type: ignore[union-attr]
        await world.bulk.resume(batch.id)
        for part in batch.parts:
            await world.server.queue.steer(part.partition, part.id, "pause", 0, version)
            counts = await world.server.queue.part(part.partition, part.id)
            assert counts is not None
            assert counts.state == "ready"


@on_virtual_time
async def test_what_waits_when_a_batch_is_cancelled_never_runs() -> None:
    world = slow_world()
    async with world.consumer(workers=2):
        batch = await world.bulk.submit("slow", range(100), on_done="note")
        await asyncio.sleep(1.05)
        await world.bulk.cancel(batch.id)
        progress = await world.bulk.wait(batch.id, 5.0)
        ran = world.items_run(batch.id)
        await world.bulk.cancel(batch.id)
        await asyncio.sleep(5.0)
    assert progress.state == "cancelled"
    assert progress.done == len(ran) > 0
    assert progress.cancelled == 100 - len(ran)
    told = [item for id, item, _ in world.ran if id == f"{batch.id}:done:0"]
    assert [(item["state"], item["cancelled"]) for item in told] == [
        ("cancelled", progress.cancelled)
    ]


@on_virtual_time
async def test_wishes_that_make_no_sense_are_refused() -> None:
    world = World()
    async with world.consumer():
        batch = await world.bulk.submit("note", range(3))
        await world.bulk.wait(batch.id, 5.0)
        await asyncio.sleep(1.0)
        for wish in (world.bulk.pause, world.bulk.cancel, world.bulk.retry_failed):
            with pytest.raises(Conflict, match="is done"):
                await wish(batch.id)


@on_virtual_time
async def test_only_what_failed_is_tried_again_and_each_end_is_told_once() -> None:
    world = World(16)
    broken = True

    @world.action(max_attempts=1)
    async def picky(item: int, context: Context) -> None:
        await world.note(item, context)
        if broken and item % 10 == 0:
            raise Fail("broken")

    async with world.consumer():
        batch = await world.bulk.submit("picky", range(2_000), on_done="note")
        progress = await world.bulk.wait(batch.id, 30.0)
        assert (progress.state, progress.failed) == ("failed", 200)
        failed = sorted([failure.index async for failure in world.bulk.failures(batch.id)])
        assert failed == list(range(0, 2_000, 10))
        broken = False
        world.ran = [run for run in world.ran if run[0] != batch.id]
        await world.bulk.retry_failed(batch.id)
        progress = await world.bulk.wait(batch.id, 30.0)
        assert (progress.state, progress.done, progress.failed) == ("done", 2_000, 0)
        assert world.items_run(batch.id) == failed
        assert [f async for f in world.bulk.failures(batch.id)] == []
        await asyncio.sleep(5.0)
    told = {id: item["state"] for id, item, _ in world.ran if ":done:" in id}
    assert told == {f"{batch.id}:done:0": "failed", f"{batch.id}:done:1": "done"}


@on_virtual_time
async def test_trying_again_can_be_repeated_after_a_crash_between_record_and_parts() -> None:
    world = World()

    @world.action(max_attempts=1)
    async def fails_once(item: int, context: Context) -> None:
        await world.note(item, context)
        if len(world.ran) <= 3:
            raise Fail("broken")

    async with world.consumer():
        batch = await world.bulk.submit("fails_once", range(3))
        await world.bulk.wait(batch.id, 5.0)
        await asyncio.sleep(1.0)
        process = world.process("doomed")
        bulk = world.bulk_of(process)

        async def die(*_: Any) -> None:
            process.kill()
            await asyncio.sleep(0)

        vars(bulk.reconciler)["tell_parts"] = die
        process.run(bulk.retry_failed(batch.id))
        await asyncio.sleep(5.0)
        await world.bulk.retry_failed(batch.id)
        assert (await world.bulk.wait(batch.id, 5.0)).state == "done"


@pytest.mark.parametrize("wish", ["pause", "resume", "cancel"])
@on_virtual_time
async def test_a_wish_that_was_told_half_way_is_told_by_whoever_looks(wish: str) -> None:
    world = slow_world()
    async with world.consumer(workers=1):
        batch = await world.bulk.submit("slow", range(100))
        await asyncio.sleep(1.0)
        if wish == "resume":
            await world.bulk.pause(batch.id)
        process = world.process("doomed")
        bulk = world.bulk_of(process)

        async def die(*_: Any) -> None:
            process.kill()
            await asyncio.sleep(0)

        vars(bulk.reconciler)["tell_parts"] = die
        process.run(getattr(bulk, wish)(batch.id))
        await asyncio.sleep(1.0)
        before = len(world.ran)
        await world.bulk.status(batch.id)
        await asyncio.sleep(2.0)
        assert (len(world.ran) - before > 10) == (wish == "resume")


@on_virtual_time
async def test_the_end_is_told_though_every_consumer_dies_right_before() -> None:
    world = World()
    first = world.start("first", member_s=1.0, lease_s=1.0)

    async def die(*_: Any) -> None:
        first.kill()
        await asyncio.sleep(0)

    first.consumer._bulk.reconciler._tell_done = die
    batch = await world.bulk.submit("note", range(20), on_done="note")
    await asyncio.sleep(10.0)
    assert first.process.is_dead
    async with world.consumer("second"):
        await asyncio.sleep(10.0)
    told = [item for id, item, _ in world.ran if id == f"{batch.id}:done:0"]
    assert [(item["state"], item["done"]) for item in told] == [("done", 20)]


@on_virtual_time
async def test_waiting_ends_when_its_time_is_up_and_the_batch_goes_on() -> None:
    world = slow_world()
    async with world.consumer(workers=1):
        batch = await world.bulk.submit("slow", range(50))
        with pytest.raises(Overloaded, match="has not ended after 1 s: it goes on"):
            await world.bulk.wait(batch.id, 1.0)
        progress = await world.bulk.status(batch.id)
        assert progress.eta_s is not None
        assert progress.eta_s == pytest.approx(progress.waiting * 0.1, rel=0.5)
        assert (await world.bulk.wait(batch.id, 30.0)).done == 50


@on_virtual_time
async def test_batches_are_listed_newest_first_for_a_tenant_or_for_all() -> None:
    world = World()
    for number, tenant in enumerate(("ann", "bob", "ann")):
        await world.bulk.submit("note", [1], id=f"b{number}", tenant=tenant)
        await asyncio.sleep(1.0)
    assert [batch.id for batch in await world.bulk.list()] == ["b2", "b1", "b0"]
    assert [batch.id for batch in await world.bulk.list(1, tenant="ann")] == ["b2"]
