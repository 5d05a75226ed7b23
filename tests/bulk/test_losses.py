"""What a server has lost is found, named, ends, and comes back when it is submitted again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from heatsink.bulk import Context, Fail
from heatsink.bulk.batch import Batch
from heatsink.bulk.store import Chunk
from heatsink.errors import Conflict, IdReused, NotFound

from .driver import lose_part
from .world import World, on_virtual_time

LATER_S = 20.0


async def lose_parts(world: World, batch: Batch, count: int = 1) -> set[int]:
    """The items that were in them."""
    stores, lost = world.server.stores(), set[int]()
    for place in batch.parts[:count]:
        await lose_part(stores, place.partition, place.id)
        for first, chunks, each in place.runs:
            lost |= {*range(first, first + chunks * each)}
    return lost


async def submitted(world: World, items: int = 2_000, **options: Any) -> Batch:
    batch = await world.bulk.submit("note", range(items), id="x", **options)
    assert len(batch.parts) > 1
    return batch


@on_virtual_time
async def test_a_lost_part_is_named_and_the_batch_ends(caplog: pytest.LogCaptureFixture) -> None:
    world = World(16)
    batch = await submitted(world)
    lost = await lose_parts(world, batch)
    async with world.consumer():
        progress = await world.bulk.wait("x", 60.0)
    named = {i for first, count in progress.missing for i in range(first, first + count)}
    assert (progress.state, progress.lost, named) == ("lost", len(lost), lost)
    assert (progress.done, progress.waiting, progress.running) == (2_000 - len(lost), 0, 0)
    assert f"lost {len(lost):,} of 2,000 items" in progress.reason
    assert "submit all items again with id='x'" in progress.reason
    assert any(record.levelno == logging.ERROR for record in caplog.records)


@on_virtual_time
async def test_a_loss_is_found_though_nobody_looks() -> None:
    world = World(16)
    batch = await submitted(world)
    lost = await lose_parts(world, batch)
    async with world.consumer() as consumer:
        await asyncio.sleep(LATER_S)
        record = await world.server.batches.get("x")
        assert record is not None
        assert (record.state, record.lost) == ("lost", len(lost))
        assert consumer.lost_items == len(lost), "for an alert"


@on_virtual_time
async def test_submitting_the_same_again_runs_just_what_was_lost() -> None:
    world = World(16)
    batch = await submitted(world)
    lost = await lose_parts(world, batch)
    async with world.consumer() as consumer:
        assert (await world.bulk.wait("x", 60.0)).state == "lost"
        world.ran.clear()
        again = await world.bulk.submit("note", range(2_000), id="x")
        assert (again.items, again.restored, again.missing) == (2_000, 1, ())
        progress = await world.bulk.wait("x", 60.0)
        assert (progress.state, progress.done, progress.lost) == ("done", 2_000, 0)
        assert world.items_run("x") == sorted(lost)
        await asyncio.sleep(LATER_S)
        assert consumer.lost_items == 0


@on_virtual_time
async def test_a_loss_is_restored_while_the_rest_still_runs_and_twice() -> None:
    world = World(16)
    batch = await submitted(world)
    for _ in range(2):
        lost = await lose_parts(world, batch)
        assert lost
        batch = await world.bulk.submit("note", range(2_000), id="x")
    async with world.consumer():
        progress = await world.bulk.wait("x", 60.0)
    assert (progress.state, progress.done, batch.restored) == ("done", 2_000, 2)
    assert world.items_run("x") == list(range(2_000))


@on_virtual_time
async def test_of_two_who_restore_at_once_one_does() -> None:
    world = World(16)
    await lose_parts(world, await submitted(world))
    both = [world.bulk.submit("note", range(2_000), id="x") for _ in range(2)]
    async with world.consumer():
        for batch in await asyncio.gather(*both):
            assert batch.restored == 1
        assert (await world.bulk.wait("x", 60.0)).state == "done"
    assert world.items_run("x") == list(range(2_000))
    assert world.staged() == []


@pytest.mark.parametrize("items", [range(1, 2_001), range(1_999), [*range(1_999), "x"]])
@on_virtual_time
async def test_other_items_restore_nothing(items: Any) -> None:
    world = World(16)
    lost = await lose_parts(world, await submitted(world))
    with pytest.raises(IdReused, match="items"):
        await world.bulk.submit("note", items, id="x")
    assert world.staged() == []
    assert (await world.bulk.status("x")).lost == len(lost)


@on_virtual_time
async def test_a_batch_whose_id_nobody_chose_is_restored_too() -> None:
    world = World(16)
    batch = await world.bulk.submit("note", range(2_000))
    await lose_parts(world, batch)
    with pytest.raises(IdReused, match="was accepted with 2,000"):
        await world.bulk.submit("note", range(3), id=batch.id)
    async with world.consumer():
        await world.bulk.submit("note", range(2_000), id=batch.id)
        assert (await world.bulk.wait(batch.id, 60.0)).done == 2_000


@on_virtual_time
async def test_each_end_of_a_restored_batch_is_told() -> None:
    world = World(16)
    batch = await submitted(world, on_done="note")
    lost = await lose_parts(world, batch)
    async with world.consumer():
        await world.bulk.wait("x", 60.0)
        await world.bulk.submit("note", range(2_000), id="x", on_done="note")
        await world.bulk.wait("x", 60.0)
        await asyncio.sleep(LATER_S)
    told = [(item["state"], item["lost"]) for id, item, _ in world.ran if ":done:" in id]
    assert told == [("lost", len(lost)), ("done", 0)]


@on_virtual_time
async def test_a_batch_that_lost_everything_can_be_cancelled_and_ends() -> None:
    world = World(16)
    batch = await submitted(world)
    await lose_parts(world, batch, len(batch.parts))
    await world.bulk.cancel("x")
    progress = await world.bulk.wait("x", 60.0)
    assert (progress.state, progress.running) == ("cancelled", 0)
    assert (await world.bulk.submit("note", range(2_000), id="x")).state == "cancelled"


@on_virtual_time
async def test_a_cancelled_batch_gets_no_advice_to_submit_it_again() -> None:
    world = World(16)
    lost = await lose_parts(world, await submitted(world))
    assert "submit all items again" in (await world.bulk.status("x")).reason
    await world.bulk.cancel("x")
    progress = await world.bulk.wait("x", 60.0)
    assert (progress.state, progress.lost, progress.reason) == ("cancelled", len(lost), "")
    assert [batch.reason for batch in await world.bulk.list()] == [""]
    with pytest.raises(Conflict, match="is cancelled: only a failed batch can be retried"):
        await world.bulk.retry_failed("x")


@on_virtual_time
async def test_what_failed_waits_for_what_was_lost() -> None:
    world = World(16)

    @world.action(max_attempts=1)
    async def broken(item: int, context: Context) -> None:
        await world.note(item, context)
        if context.attempt and item % 2:
            raise Fail("no")

    batch = await world.bulk.submit("broken", range(2_000), id="x")
    lost = await lose_parts(world, batch)
    async with world.consumer():
        progress = await world.bulk.wait("x", 60.0)
        assert (progress.state, progress.failed) == ("lost", 1_000 - len(lost) // 2)
        with pytest.raises(Conflict, match="submit all its items again with id="):
            await world.bulk.retry_failed("x")
        await world.bulk.submit("broken", range(2_000), id="x")
        assert (await world.bulk.wait("x", 60.0)).failed == 1_000
        await world.bulk.retry_failed("x")
        progress = await world.bulk.wait("x", 60.0)
        assert (progress.state, progress.done, progress.failed) == ("failed", 1_000, 1_000)


@on_virtual_time
async def test_a_missing_chunk_hurts_nobody_else() -> None:
    world = World(1)
    batch = await world.bulk.submit("note", range(1_000), id="x", tenant="ann")
    others = [await world.bulk.submit("note", range(100), tenant=f"t{n}") for n in range(12)]
    (place,) = batch.parts
    share = world.server.queue.partitions[0].shares[place.id]
    del share.chunks[3]
    async with world.consumer():
        for other in others:
            assert (await world.bulk.wait(other.id, 60.0)).state == "done"
        progress = await world.bulk.wait("x", 60.0)
        assert (progress.state, progress.done, progress.missing) == ("lost", 900, [(300, 100)])
        world.ran.clear()
        await world.bulk.submit("note", range(1_000), id="x", tenant="ann")
        assert (await world.bulk.wait("x", 60.0)).state == "done"
    assert world.items_run("x") == list(range(300, 400))


@pytest.mark.parametrize("left", [0, 200])
@on_virtual_time
async def test_a_part_with_damaged_counters_is_missing_as_a_whole(left: int) -> None:
    """Nobody can tell which of its items the counters have forgotten."""
    world = World(1)
    batch = await world.bulk.submit("note", range(300), id="x")
    world.server.queue.partitions[0].shares[batch.parts[0].id].fresh = left
    assert (await world.bulk.status("x")).missing == [(0, 300)]
    async with world.consumer():
        progress = await world.bulk.wait("x", 60.0)
        assert (progress.state, progress.missing) == ("lost", [(0, 300)])
        world.ran.clear()
        await world.bulk.submit("note", range(300), id="x")
        assert (await world.bulk.wait("x", 60.0)).state == "done"
    assert world.items_run("x") == list(range(300))


@on_virtual_time
async def test_a_chunk_that_cannot_be_read_fails_and_hurts_nobody_else() -> None:
    world = World(1)
    batch = await world.bulk.submit("note", range(300), id="x")
    other = await world.bulk.submit("note", range(100), tenant="bob")
    share = world.server.queue.partitions[0].shares[batch.parts[0].id]
    share.chunks[1] = Chunk(1, 100, b"\xff not msgpack")
    async with world.consumer():
        assert (await world.bulk.wait(other.id, 60.0)).state == "done"
        progress = await world.bulk.wait("x", 60.0)
    assert (progress.state, progress.done, progress.failed) == ("failed", 200, 100)


@on_virtual_time
async def test_a_record_that_is_lost_comes_back_from_its_parts() -> None:
    world = World(16)
    batch = await submitted(world)
    await world.bulk.pause("x")
    await world.server.batches.forget("x", 0)
    with pytest.raises(NotFound):
        await world.bulk.status("x")
    async with world.consumer():
        await asyncio.sleep(LATER_S)
        progress = await world.bulk.status("x")
        assert (progress.state, progress.accepted) == ("paused", 2_000)
        await world.bulk.resume("x")
        assert (await world.bulk.wait("x", 60.0)).done == 2_000
    assert world.items_run(batch.id) == list(range(2_000))


@on_virtual_time
async def test_an_end_whose_record_is_lost_is_not_forgotten() -> None:
    world = World(1)

    async def ending(_: int, context: Context) -> None:
        await world.server.batches.forget(context.batch, 0)

    world.actions.action("ending")(ending)
    batch = await world.bulk.submit("ending", range(10), on_done="note")
    async with world.consumer():
        await asyncio.sleep(LATER_S)
        assert (await world.bulk.status(batch.id)).done == 10
    assert [item["done"] for id, item, _ in world.ran if ":done:" in id] == [10]


@on_virtual_time
async def test_a_part_that_comes_back_is_not_lost_any_more() -> None:
    """An operator started the server with an empty folder, and then with the right one."""
    world = World(16)
    batch = await submitted(world)
    place = batch.parts[0]
    shares = world.server.queue.partitions[place.partition].shares
    share = shares[place.id]
    await lose_parts(world, batch)
    async with world.consumer():
        assert (await world.bulk.wait("x", 60.0)).state == "lost"
        shares[place.id] = share
        queue = world.server.queue
        queue.partitions[place.partition]._put(share, queue.now_ms(place.partition))
        await asyncio.sleep(LATER_S)
        progress = await world.bulk.status("x")
    assert (progress.state, progress.done, progress.lost) == ("done", 2_000, 0)
    assert world.items_run("x") == list(range(2_000))


@on_virtual_time
async def test_parts_that_are_lost_while_a_batch_is_staged_are_staged_again() -> None:
    world = World(16)
    stores = world.server.stores()

    async def items() -> AsyncIterator[int]:
        for number in range(3_000):
            if number == 2_500:
                for partition, queue in list(world.server.queue.partitions.items()):
                    for part in list(queue.shares):
                        await lose_part(stores, partition, part)
            yield number

    async with world.consumer():
        await world.bulk.submit("note", items(), id="x")
        assert (await world.bulk.wait("x", 60.0)).done == 3_000
    assert world.items_run("x") == list(range(3_000))


@on_virtual_time
async def test_a_rate_whose_record_is_lost_is_declared_again() -> None:
    world = World(1)

    @world.action()
    async def slow(item: int, context: Context) -> None:
        await world.note(item, context)
        await asyncio.sleep(2.0)

    await world.bulk.submit("slow", range(200), rate="10/s")
    world.server.limits._limits.clear()
    async with world.consumer():
        await asyncio.sleep(LATER_S)
        assert await world.server.limits.rate_of("slow/default") == pytest.approx(10, rel=0.05)


@on_virtual_time
async def test_partitions_beyond_a_plan_that_is_lost_are_drained() -> None:
    world = World(2)
    await world.bulk.repartition(12)
    batch = await submitted(world)
    world.server.fleet._fleet.plan = None
    async with world.consumer():
        assert (await world.bulk.wait(batch.id, 60.0)).done == 2_000


@on_virtual_time
async def test_an_end_is_shown_only_when_it_is_durable() -> None:
    world = World(1)
    seen: list[str] = []
    barrier = world.server.barrier.batches

    async def watched(ids: list[str]) -> Any:
        found = await barrier(ids)
        seen.extend(batch.state for batch in found if batch)
        return found

    world.server.barrier.batches = watched  # type: ignore[method-assign,assignment]
    async with world.consumer():
        batch = await world.bulk.submit("note", range(10))
        assert seen == ["running"]
        assert (await world.bulk.wait(batch.id, 60.0)).state == "done"
        assert seen[-1] == "done"
        count = len(seen)
        await world.bulk.status(batch.id)
        assert len(seen) == count, "once is enough"


def test_a_rebuilt_record_is_newer_than_any_that_parts_have_heard_of() -> None:
    from heatsink.bulk import changes

    carried = Batch("x", "note", "ann", 1, "running", version=5)
    assert changes.rebuilt(carried, None).version > 1_000_000
    assert changes.rebuilt(carried, replace(carried, version=2_000_000)).version > 3_000_000
