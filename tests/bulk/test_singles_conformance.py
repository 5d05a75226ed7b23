"""Batches of one item in a store: in memory, on a server, and refused on a cluster."""

from __future__ import annotations

from random import Random
from uuid import uuid4

import pytest
from msgspec.structs import replace

from heatsink.bulk import Bulk, BulkSettings
from heatsink.bulk.batch import Rate
from heatsink.bulk.plan import Spot
from heatsink.bulk.store import QueueStores, Setback, Single
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisCluster, RedisServer

from .conftest import redis_queue
from .driver import NOW_MS, PARTITION, Driver, places, single_of


@pytest.fixture(params=["memory", "server"])
async def stores(request: pytest.FixtureRequest, clock: ManualClock):  # type: ignore[no-untyped-def]
    if request.param == "memory":
        yield MemoryQueueServer(clock).stores()
        return
    async with redis_queue(request.getfixturevalue("server").url, clock) as opened:
        yield opened


async def accept(stores: QueueStores, *singles: Single) -> list[bool]:
    answers: list[bool] = await stores.singles.accept(PARTITION, singles)
    return answers


async def test_a_single_has_its_record_and_its_item_can_be_claimed(
    stores: QueueStores, driver: Driver
) -> None:
    one, two = single_of("a"), single_of("b", tenant="bob")
    assert await accept(stores, one, two) == [True, True]
    assert await stores.batches.get("batch-a") == one.record
    assert {batch.id for batch in await stores.batches.list(10)} == {"batch-a", "batch-b"}
    assert [batch.id for batch in await stores.batches.list(10, "bob")] == ["batch-b"]
    assert not await stores.queue.is_idle(PARTITION)
    assert sorted(places(await driver.slices())) == [("a/0", 0, 1), ("b/0", 0, 1)]


async def test_a_repeated_call_changes_nothing(stores: QueueStores, driver: Driver) -> None:
    single = single_of("a")
    assert await accept(stores, single, single) == [True, True]
    assert await driver.work() == 1
    assert await accept(stores, single) == [True], "also when its item is done"
    assert await driver.slices() == []
    taken = replace(single, record=replace(single.record, generation="other"))
    assert await accept(stores, taken) == [False]


async def test_a_done_item_ends_the_record_in_the_same_call(
    stores: QueueStores, driver: Driver
) -> None:
    await accept(stores, single_of("a"))
    await driver.work()
    found = await stores.batches.get("batch-a")
    assert found is not None
    assert (found.state, found.version, found.ended_ms) == ("done", 2, NOW_MS)
    assert [(end.part, end.done) for end in found.ends] == [("a", 1)]
    assert found.tag not in ("", single_of("a").record.tag)
    assert await stores.queue.part(PARTITION, "a") is None
    assert await driver.ends() == []
    assert await stores.queue.is_idle(PARTITION)
    load = await stores.queue.load(PARTITION)
    assert (load.runnable, load.in_flight, load.tenants, load.done) == (0, 0, 0, 1)


@pytest.mark.parametrize("state", ["paused", "cancelling"])
async def test_an_item_that_was_running_ends_its_record_whatever_was_wished(
    stores: QueueStores, driver: Driver, state: str
) -> None:
    single = single_of("a")
    await accept(stores, single)
    (held,) = await driver.slices()
    assert await stores.batches.update(replace(single.record, state=state))
    await driver.settle(held, "d")
    found = await stores.batches.get("batch-a")
    assert found is not None
    assert (found.state, found.version) == ("done", 3)


async def test_what_did_not_end_well_is_reported_as_other_ends_are(
    stores: QueueStores, driver: Driver
) -> None:
    await accept(stores, single_of("a"), single_of("b", on_done="mail"))
    for held in await driver.slices():
        mark = "f" if held.part == "a" else "d"
        await driver.settle(held, mark, Setback(0, "no"))
    ends = {end.part: (end.done, end.failed) for end in await driver.ends()}
    assert ends == {"a": (0, 1), "b": (1, 0)}
    assert await stores.batches.get("batch-a") == single_of("a").record
    assert [failed.body for failed in await stores.queue.failures(PARTITION, "a", "", 9)] == [
        b"a/0"
    ]


async def test_a_retried_item_leaves_no_end_of_its_first_lap(
    stores: QueueStores, driver: Driver
) -> None:
    single = single_of("a")
    await accept(stores, single)
    await driver.work(mark="f")
    again = await stores.batches.update(replace(single.record, lap=1))
    assert again
    await driver.steer("a", "retry", 1, again.version)
    await driver.work()
    found = await stores.batches.get("batch-a")
    assert found is not None
    assert (found.state, found.ends[0].lap) == ("done", 1)
    assert await driver.ends() == []


async def test_a_limited_lane_or_another_place_takes_no_singles(stores: QueueStores) -> None:
    await stores.limits.declare("mail/ada", Rate(1))
    assert await accept(stores, single_of("a"), single_of("b", tenant="bob")) == [False, True]
    assert await stores.batches.get("batch-a") is None
    assert await stores.queue.part(PARTITION, "a") is None
    away = Spot(PARTITION, "redis://127.0.0.1:1", 0)
    assert await stores.singles.below.accept(away, [single_of("c")]) == [False]  # type: ignore[attr-defined]


async def test_a_single_sleeps_until_its_start(stores: QueueStores, driver: Driver) -> None:
    await accept(stores, single_of("a", start_ms=NOW_MS + 5_000))
    claimed = await driver.claim()
    assert (claimed.slices, claimed.more, claimed.wake_ms) == ([], False, 5_000)
    await driver.wait(5_000)
    assert await driver.work() == 1


async def test_a_place_that_gave_its_partition_away_takes_no_singles(
    server: RedisServer, clock: ManualClock
) -> None:
    stage = f"test-{uuid4().hex}"
    async with (
        redis_queue(server.url, clock, stage=stage) as old,
        redis_queue(server.url, clock, stage=stage) as new,
    ):
        assert await accept(old, single_of("a")) == [True]
        await Driver(old, clock).work()
        bulk = Bulk(new, BulkSettings(), clock, Random(1))
        with RedisServer() as other:
            await bulk.place(PARTITION, other.url)
            assert await accept(old, single_of("b")) == [False]
            assert await old.queue.part(PARTITION, "b") is None


async def test_one_script_accepts_all_that_a_call_brings(
    server: RedisServer, clock: ManualClock
) -> None:
    async with redis_queue(server.url, clock) as stores:
        await accept(stores, single_of("first"))
        server.command("CONFIG", "RESETSTAT")
        await accept(stores, *(single_of(f"s{n}") for n in range(20)))
        said = server.command("INFO", "commandstats")
    calls = {
        line.partition(":")[0].removeprefix("cmdstat_"): int(
            line.partition("calls=")[2].split(",")[0]
        )
        for line in said.split()
        if line.startswith("cmdstat_")
    }
    assert calls["evalsha"] == 1
    assert sum(calls.values()) < 20 * 7


async def test_a_cluster_takes_no_singles(cluster: RedisCluster, clock: ManualClock) -> None:
    async with redis_queue(cluster.url, clock) as stores:
        assert await accept(stores, single_of("a")) == [False]
        bulk = Bulk(stores, BulkSettings(), clock, Random(1))
        batch = await bulk.enqueue("mail", 1)
        assert (await bulk.status(batch.id)).waiting == 1
