"""Batches of one item in a store: in memory, on a server, and refused on a cluster."""

from __future__ import annotations

from random import Random
from uuid import uuid4

import pytest
from msgspec.structs import replace

from heatsink.bulk import Bulk, BulkSettings
from heatsink.bulk.batch import Next, Rate, digest_of
from heatsink.bulk.plan import Spot
from heatsink.bulk.store import Chunk, QueueStores, Setback, Single
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisCluster, RedisServer

from .conftest import redis_queue
from .driver import LEASE_MS, NOW_MS, PARTITION, Driver, handovers, listening, places, single_of


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
    before = single_of("a").record
    assert await stores.batches.open(before) == found, "as every call reads the record"
    assert await stores.batches.restore(before) == found
    later = await stores.batches.update(found)
    assert later is not None
    assert await stores.batches.get("batch-a") == later
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


async def hear(stores: QueueStores, request: pytest.FixtureRequest) -> str:
    is_memory = request.node.callspec.params["stores"] == "memory"
    await listening(stores, None if is_memory else request.getfixturevalue("server"))
    return stores.bell.address


async def test_the_standing_claim_takes_a_single(
    stores: QueueStores, driver: Driver, request: pytest.FixtureRequest
) -> None:
    claimed = await driver.claim(attempt="x", bell=await hear(stores, request))
    assert (claimed.slices, claimed.kept_ms) == ([], NOW_MS)
    assert await accept(stores, single_of("a"), single_of("b", submitted_ms=1)) == [True, True]
    (handover,) = await handovers(stores)
    assert (handover.partition, handover.now_ms) == (PARTITION, NOW_MS)
    assert handover.slice.attempt == "x:a"
    assert places([handover.slice]) == [("a/0", 0, 1)]
    load = await stores.queue.load(PARTITION)
    assert (load.in_flight, load.runnable, load.claimed) == (1, 1, 1)
    await driver.settle(handover.slice, "d")
    found = await stores.batches.get("batch-a")
    assert found is not None
    assert found.state == "done"
    await accept(stores, single_of("c"))
    assert sorted(places(await driver.slices())) == [("b/0", 0, 1), ("c/0", 0, 1)], "it takes one"


async def test_the_standing_claim_takes_nothing_while_others_wait(
    stores: QueueStores, driver: Driver, request: pytest.FixtureRequest
) -> None:
    claimed = await driver.claim(bell=await hear(stores, request))
    assert claimed.kept_ms
    await driver.submit("waits", [1], tenant="bob")
    await accept(stores, single_of("a"))
    load = await stores.queue.load(PARTITION)
    assert (load.runnable, load.in_flight) == (2, 0)
    assert not (await driver.claim(1, bell=stores.bell.address)).kept_ms, "it got an item"


async def test_a_handover_that_never_came_is_taken_back(
    stores: QueueStores, driver: Driver, request: pytest.FixtureRequest
) -> None:
    await driver.claim(attempt="x", bell=await hear(stores, request))
    await accept(stores, single_of("a"))
    assert not (await driver.claim()).slices, "it is leased"
    again = (await driver.claim(attempt="y", unanswered=["x"])).slices
    assert [(each.attempt, each.tries) for each in again] == [("y:0", 0)]


async def test_the_lease_of_a_handover_expires_as_others_do(
    stores: QueueStores, driver: Driver, request: pytest.FixtureRequest
) -> None:
    await driver.claim(bell=await hear(stores, request))
    await accept(stores, single_of("a"))
    (handover,) = await handovers(stores)
    await driver.wait(LEASE_MS)
    assert places(await driver.slices()) == [("a/0", 0, 1)]
    assert not await driver.settle(handover.slice, "d")


async def test_a_standing_claim_ends_with_the_ownership_and_with_the_next_claim(
    stores: QueueStores, driver: Driver, request: pytest.FixtureRequest
) -> None:
    bell = await hear(stores, request)
    await driver.claim(bell=bell)
    await stores.fleet.disown(PARTITION, "me")
    await stores.fleet.own(PARTITION, "you", 60_000)
    await accept(stores, single_of("a"))
    assert (await stores.queue.load(PARTITION)).runnable == 1
    await stores.fleet.disown(PARTITION, "you")
    await driver.work()
    assert (await driver.claim(bell=bell)).kept_ms
    assert not (await driver.claim()).kept_ms
    await accept(stores, single_of("b"))
    assert (await stores.queue.load(PARTITION)).runnable == 1


async def test_nothing_is_handed_over_to_a_process_that_is_gone(
    server: RedisServer, clock: ManualClock
) -> None:
    async with redis_queue(server.url, clock) as stores:
        driver = Driver(stores, clock)
        assert (await driver.claim(bell=stores.bell.address)).kept_ms
        await accept(stores, single_of("a"))
        assert places(await driver.slices()) == [("a/0", 0, 1)]


async def test_another_place_takes_no_singles(stores: QueueStores) -> None:
    away = Spot(PARTITION, "redis://127.0.0.1:1", 0)
    assert await stores.singles.below.accept(away, [single_of("c")]) == [False]  # type: ignore[attr-defined]


async def test_in_a_lane_with_a_rate_singles_wait_for_grants(
    stores: QueueStores, driver: Driver
) -> None:
    await stores.limits.declare("mail/ada", Rate(5))
    singles = single_of("a"), single_of("b", tenant="bob"), single_of("c", rate=Rate(5))
    assert await accept(stores, *singles) == [True, True, True]
    claimed = await driver.claim()
    assert [each.part for each in claimed.slices] == ["b"]
    assert [depth.waiting for depth in claimed.lanes] == [2]
    lane = claimed.lanes[0].lane
    found = (await driver.claim(grants={lane: 1})).slices
    found += (await driver.claim(grants={lane: 5})).slices
    assert sorted(each.part for each in found) == ["a", "c"]
    assert all(each.limited for each in found)
    for each in found:
        await driver.settle(each, "d")
        record = await stores.batches.get(each.batch)
        assert record is not None
        assert record.state == "done"
    load = await stores.queue.load(PARTITION)
    assert (load.limited, load.runnable, load.in_flight) == (0, 0, 1)


async def test_a_single_with_another_rate_than_its_lane_is_not_accepted(
    stores: QueueStores,
) -> None:
    for declared in (None, Rate(2), Rate(1, 60.0)):
        if declared:
            await stores.limits.declare("mail/ada", declared)
        assert await accept(stores, single_of("a", rate=Rate(1))) == [False]
        assert await stores.batches.get("batch-a") is None
        assert await stores.queue.part(PARTITION, "a") is None
    await stores.limits.declare("mail/ada", Rate(1))
    assert await accept(stores, single_of("a", rate=Rate(1))) == [True]


async def test_a_single_with_limits_waits_in_the_lane_of_its_places(
    stores: QueueStores, driver: Driver
) -> None:
    single = single_of("a", limits=(("all", "", ""), ("each", "tenant", "")))
    assert await accept(stores, single) == [True]
    claimed = await driver.claim()
    assert claimed.slices == []
    assert [(depth.lane, depth.waiting) for depth in claimed.lanes] == [(single.part.lane, 1)]
    assert single.part.lane != single.record.lane
    [held] = (await driver.claim(grants={single.part.lane: 1})).slices
    await driver.settle(held, "d")
    assert await stores.queue.part(PARTITION, "a") is None


@pytest.mark.parametrize("size", [10, 5_000])
async def test_the_result_of_a_done_item_is_kept_as_long_as_its_record(
    stores: QueueStores, driver: Driver, size: int
) -> None:
    single = single_of("a", result_bytes=100, keep_ms=60_000)
    body = b"x" * size
    place = replace(single.record.parts[0], digest=digest_of(body))
    single = replace(single, record=replace(single.record, parts=(place,)), chunk=Chunk(0, 1, body))
    assert await accept(stores, single) == [True]
    [held] = await driver.slices()
    await driver.settle(held, "d", results=[(0, b"\x07")])
    record = await stores.batches.get("batch-a")
    assert record is not None
    assert (record.state, record.version) == ("done", 2)
    counts = await driver.counts("a")
    assert (counts.state, counts.done) == ("finished", 1)
    assert await driver.ends() == []
    assert await stores.queue.is_idle(PARTITION)
    [kept] = await stores.queue.results(PARTITION, "a", [(0, 1)], True)
    assert (kept.results, kept.body) == ([(0, 0, b"\x07")], b"")


@pytest.mark.parametrize("option", ["then", "otherwise"])
async def test_a_single_that_others_follow_is_reported_and_keeps_its_item(
    stores: QueueStores, driver: Driver, option: str
) -> None:
    single = single_of("a", result_bytes=100, keep_ms=60_000, **{option: Next("pack")})
    assert await accept(stores, single) == [True]
    [held] = await driver.slices()
    await driver.settle(held, "d", results=[(0, b"\x07")])
    assert await stores.batches.get("batch-a") == single.record
    assert [(end.part, end.done) for end in await driver.ends()] == [("a", 1)]
    [kept] = await stores.queue.results(PARTITION, "a", [(0, 1)], True)
    assert kept.results == [(0, 0, b"\x07")]
    assert kept.body == (b"a/0" if option == "then" else b"")


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


async def test_the_keys_of_a_kept_result_expire(server: RedisServer, clock: ManualClock) -> None:
    async with redis_queue(server.url, clock, stage=f"test-{uuid4().hex}") as stores:
        driver, before = Driver(stores, clock), {*server.command("KEYS", "*").split()}
        await accept(stores, single_of("a", result_bytes=100, keep_ms=60_000))
        [held] = await driver.slices()
        await driver.settle(held, "d", results=[(0, b"\x07")])
        keys = {*server.command("KEYS", "*").split()} - before
        own = [key for key in keys if "/part/" in key or "/{batch_" in key]
        assert len(own) == 3, "the part, its results and the record"
        for key in own:
            assert 0 < int(server.command("PTTL", key)) <= 60_000


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
