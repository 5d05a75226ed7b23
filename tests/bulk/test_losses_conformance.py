"""What every queue store must do about items that are gone, and with the records of batches."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from heatsink.bulk.batch import Batch, PartPlace, digest_of, digests_added
from heatsink.bulk.store import Chunk, LivePart, QueueStores

from .driver import PARTITION, Driver, lose_chunk, lose_part, places


async def test_a_part_tells_the_checksum_of_what_was_staged(
    driver: Driver, stores: QueueStores
) -> None:
    part = await driver.submit("a", [3, 2], release=False)
    await stores.queue.stage(PARTITION, part, [Chunk(1, 2, b"again"), Chunk(3, 1, b"later")])
    counts = await driver.counts("a")
    bodies = (b"a/0", b"a/1", b"later")
    digest = 0
    for body in bodies:
        digest = digests_added(digest, digest_of(body))
    assert (counts.size, counts.chunks, counts.digest) == (6, 3, digest)


async def test_a_barrier_reads_parts_and_records(driver: Driver, stores: QueueStores) -> None:
    await driver.submit("a", [3], release=False)
    batch = await stores.batches.open(Batch("x", "mail", "ada", 1))
    found = await stores.barrier.parts([PartPlace("a", PARTITION, 3), PartPlace("b", 7, 3)])
    assert found == [await driver.counts("a"), None]
    assert await stores.barrier.batches(["x", "y"]) == [batch, None]


async def test_a_missing_chunk_is_passed_over_and_its_items_are_lost(driver: Driver) -> None:
    await driver.submit("a", [2, 3, 4])
    await driver.submit("b", [2], tenant="bob")
    await lose_chunk(driver.stores, "a", 1)
    found = places(await driver.slices())
    assert sorted(found) == [("a/0", 0, 2), ("a/2", 0, 4), ("b/0", 0, 2)]
    assert await driver.stores.losses.gaps(PARTITION, "a", 3) == [(1, 0, -1)]


async def test_a_part_with_missing_chunks_ends(driver: Driver) -> None:
    await driver.submit("a", [2, 3, 4])
    await lose_chunk(driver.stores, "a", 1)
    assert await driver.work() == 6
    assert await driver.work() == 0
    (end,) = await driver.ends()
    counts = await driver.counts("a")
    assert (end.done, end.items, counts.lost, counts.waiting) == (6, 6, 3, 0)
    assert counts.state == "finished"


async def test_a_chunk_that_vanishes_between_two_tries_is_lost_item_by_item(
    driver: Driver,
) -> None:
    await driver.submit("a", [3])
    (slice_,) = await driver.slices()
    await driver.settle(slice_, "drr")
    await lose_chunk(driver.stores, "a", 0)
    assert await driver.slices() == []
    counts = await driver.counts("a")
    assert (counts.done, counts.lost, counts.running, counts.state) == (1, 2, 0, "finished")
    gaps = await driver.stores.losses.gaps(PARTITION, "a", 1)
    lost = {offset + i for chunk, offset, count in gaps for i in range(count) if chunk == 0}
    assert lost == {1, 2}


async def test_a_part_that_is_gone_keeps_nobody_from_working(driver: Driver) -> None:
    await driver.submit("a", [5, 5])
    (held,) = await driver.slices(5)
    await driver.submit("b", [2], tenant="bob")
    await lose_part(driver.stores, PARTITION, "a")
    assert await driver.work() == 2
    assert not await driver.settle(held, "d")
    await driver.wait(60_000)
    assert await driver.work() == 0
    assert await driver.stores.losses.live_parts(PARTITION, "", 10) == []


async def test_chunks_that_were_never_staged_are_gaps(driver: Driver) -> None:
    await driver.submit("a", [2, 2], release=False)
    assert await driver.stores.losses.gaps(PARTITION, "a", 4) == [(2, 0, -1), (3, 0, -1)]
    assert await driver.stores.losses.gaps(PARTITION, "nobody", 4) == []


async def test_live_parts_are_those_that_were_released_and_have_not_ended(driver: Driver) -> None:
    for name in "abcd":
        await driver.submit(name, [1], release=name != "d")
    await driver.steer("b", "pause", since=1)
    await driver.steer("c", "cancel", since=1)
    queue = driver.stores.losses
    names = {part.id: part.batch for part in await queue.live_parts(PARTITION, "", 10)}
    assert names == {"a": "batch-a", "b": "batch-b"}
    first: list[LivePart] = await queue.live_parts(PARTITION, "", 1)
    rest = await queue.live_parts(PARTITION, first[0].id, 10)
    assert {part.id for part in [*first, *rest]} == {"a", "b"}


async def test_a_part_keeps_the_newest_record_of_its_batch(
    driver: Driver, stores: QueueStores
) -> None:
    await driver.submit("a", [1], release=False)
    old, new = (Batch("batch-a", "mail", "ada", 1, "running", version=n) for n in (1, 2))
    assert await stores.losses.record_of(PARTITION, "a") is None
    for record in (new, old):
        steer = stores.queue.steer
        await steer(PARTITION, "a", "release", 3, record.version, record)
    assert await stores.losses.record_of(PARTITION, "a") == new
    assert (await driver.counts("a")).lap == 3
    assert await stores.losses.record_of(PARTITION, "nobody") is None


async def test_parts_of_a_batch_share_a_copy_of_its_record(
    driver: Driver, stores: QueueStores
) -> None:
    steer, record_of = stores.queue.steer, stores.losses.record_of
    for part in ("a", "b", "c"):
        await driver.submit(part, [1], release=False)
    old, new = (Batch("batch", "mail", "ada", 1, "running", version=n) for n in (1, 2))
    await steer(PARTITION, "a", "release", 0, 2, new)
    await steer(PARTITION, "b", "release", 0, 2, "a")
    await steer(PARTITION, "c", "release", 0, 1, old)
    await steer(PARTITION, "c", "release", 0, 1, "nobody")
    assert [await record_of(PARTITION, part) for part in ("a", "b", "c")] == [new, new, None]
    assert [(await driver.counts(part)).recorded for part in ("a", "b", "c")] == [2, 2, 1]
    assert len(await stores.losses.live_parts(PARTITION, "", 10)) == 3
    await steer(PARTITION, "b", "pause", 0, 1, old)
    assert await record_of(PARTITION, "b") == new, "the older record came late"
    await driver.work()
    assert await record_of(PARTITION, "b") == new, "the copy is kept after the end of its part"


async def test_a_record_is_put_back_unless_a_newer_one_is_there(stores: QueueStores) -> None:
    lost = Batch("x", "mail", "ada", 5, "running", version=7)
    assert await stores.batches.restore(lost) == lost
    assert [batch.id for batch in await stores.batches.list(10)] == ["x"]
    older = replace(lost, version=6, state="done")
    assert await stores.batches.restore(older) == lost
    newer = replace(lost, version=8, state="done")
    assert await stores.batches.restore(newer) == newer
    assert await stores.batches.get("x") == newer


@pytest.mark.parametrize("start", [0, 2, 5])
async def test_batches_are_browsed_from_a_place_on(stores: QueueStores, start: int) -> None:
    for number in range(5):
        await stores.batches.open(Batch(f"b{number}", "mail", "ada", number))
    await stores.batches.forget("b4", 0)
    assert len(await stores.batches.browse(0, 10)) == 4
    found = [batch.id for batch in await stores.batches.browse(start, 2)]
    assert found == ["b3", "b2", "b1", "b0"][start : start + 2]
