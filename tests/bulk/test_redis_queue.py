"""What is special about a queue in Redis: names, places, memory, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from heatsink.bulk.batch import Batch, PartPlace, Rate
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.plan import LEGACY
from heatsink.bulk.settings import BulkSettings
from heatsink.bulk.store import Chunk, Part, QueueStores
from heatsink.bulk.submit import hand
from heatsink.bulk.work.consumer import Housekeeping
from heatsink.errors import InvalidSetting
from heatsink.stores.redis.connection import Connection
from heatsink.stores.redis.queue import open_queue
from heatsink.stores.redis.queue.keys import QueueKeys
from heatsink.stores.redis.queue.queue import RedisQueue
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisSentinel, RedisServer
from tests.servers import patient, real

from .conftest import redis_queue
from .driver import LEASE_MS, NOW_MS, PARTITION, Driver, below, ring_until_heard


@pytest.fixture
async def stores(server: RedisServer, clock: ManualClock) -> AsyncIterator[QueueStores]:
    async with redis_queue(server.url, clock) as opened:
        yield opened


@pytest.fixture
async def redis(server: RedisServer, clock: ManualClock) -> AsyncIterator[Connection]:
    connection = Connection(patient(server.url), clock, Random(1))
    await connection.run("FLUSHALL")
    yield connection
    await connection.close()


async def names(redis: Connection) -> list[str]:
    return sorted(name.decode() for name in await redis.run("KEYS", "*"))


def test_keys_are_where_operators_expect_them() -> None:
    keys = QueueKeys("prod")
    assert keys.partition(3) == "/prod/queue/{partition_3}/"
    assert keys.partition(LEGACY) == "/prod/{queue}/"
    assert keys.bell == "/prod/queue/bell"
    assert keys.fleet("members") == "/prod/fleet/{fleet}/members"
    assert keys.batch("a").startswith("/prod/batches/{batch_")
    assert keys.limit("a").startswith("/prod/limits/{limit_")


@pytest.mark.parametrize("stage", ["", "a/b", "a{b", "a b", "x" * 65, 3])
def test_a_stage_that_breaks_names_is_refused(stage: str) -> None:
    with pytest.raises(InvalidSetting, match="stage must be"):
        QueueKeys(stage)


def test_homes_spread_evenly_over_256_slots() -> None:
    homes = {QueueKeys().batch(str(n)).split("}")[0] for n in range(5_000)}
    assert len(homes) == 256


async def test_nothing_that_users_write_is_in_a_name(
    redis: Connection, stores: QueueStores, clock: ManualClock
) -> None:
    driver, text = Driver(stores, clock), "{u}ser text"
    about: Any = {"tenant": text, "batch": text, "action": text}
    await driver.submit(f"{text} 1", [2, 2], lane=text, **about)
    await driver.submit(f"{text} 2", [2, 2], **about)
    for item in await driver.slices(**{text: 3}):
        await driver.settle(item, "rf"[: item.count])
    await driver.lose()
    await stores.batches.open(Batch(text, text, text, 1))
    await stores.limits.declare(text, Rate(1))
    await stores.fleet.join(text, [text], 1_000)
    await driver.slices()
    found = await names(redis)
    assert len(found) > 20
    assert not [name for name in found if "ser text" in name]


async def test_notices_of_workers_are_deleted_when_they_are_over(
    redis: Connection, stores: QueueStores, clock: ManualClock
) -> None:
    await stores.fleet.join("a", ["mail", "heatsink.plain/a", "heatsink.lacks/3/push"], 1_000)
    await clock.advance(1.0)
    await stores.fleet.join("b", ["push"], 1_000)
    (offers,) = [name for name in await names(redis) if name.endswith("offers")]
    assert await redis.run("ZRANGE", offers, 0, -1) == [b"mail", b"push"]


async def test_items_that_are_done_leave_nothing_behind(
    redis: Connection, stores: QueueStores, clock: ManualClock
) -> None:
    driver = Driver(stores, clock)
    await driver.submit("a", [5, 5])
    await driver.work(mark="r")
    await driver.work(mark="f")
    await driver.steer("a", "retry", lap=1)
    await driver.lose(10)
    while await driver.work():
        await driver.wait(20)
    left = {name.partition("}/")[2].partition("/")[2] for name in await names(redis)}
    assert (await driver.counts("a")).done == 10
    assert {name.partition("/")[2] for name in left} == {""}, "only the part's own record is left"


async def chunks_left(redis: Connection) -> int:
    (name,) = [name for name in await names(redis) if name.endswith("/chunks")] or [""]
    return sum(field.startswith(b"b") for field in await redis.run("HKEYS", name)) if name else 0


async def test_a_cancelled_part_frees_its_chunks_at_once(
    redis: Connection, stores: QueueStores, clock: ManualClock
) -> None:
    driver = Driver(stores, clock)
    await driver.submit("a", [5] * 200)
    await driver.work(want=7, mark="r")
    await driver.steer("a", "cancel")
    assert await chunks_left(redis) == 0
    assert [name for name in await names(redis) if "/part/" in name and "/notes" in name] == []
    assert (await driver.counts("a")).cancelled == 1_000


async def test_what_runs_when_its_part_is_cancelled_may_finish_and_then_frees_its_chunks(
    redis: Connection, stores: QueueStores, clock: ManualClock
) -> None:
    driver = Driver(stores, clock)
    await driver.submit("a", [5] * 200)
    first, second = await driver.slices(7)
    await driver.steer("a", "cancel")
    assert await chunks_left(redis) == 2
    assert await driver.settle(first, "ddddd")
    assert await driver.settle(second, "df")
    assert await chunks_left(redis) == 1
    assert not await driver.settle(first, "fffff"), "a late acknowledgement is refused"
    (failed,) = await stores.queue.failures(PARTITION, "a", "", 10)
    assert (failed.body, failed.offset) == (b"a/1", 1)
    counts = await driver.counts("a")
    assert (counts.state, counts.done, counts.failed, counts.cancelled) == ("finished", 6, 1, 993)


async def test_a_part_with_many_failures_frees_what_was_never_begun_when_it_is_cancelled(
    redis: Connection, stores: QueueStores, clock: ManualClock
) -> None:
    driver = Driver(stores, clock)
    await driver.submit("a", [5] * 400)
    while (await driver.counts("a")).failed <= 1_000:
        await driver.work(mark="f")
    await driver.steer("a", "cancel")
    failed = (await driver.counts("a")).failed
    assert await chunks_left(redis) == -(-failed // 5)


async def test_a_part_that_ended_expires_once_its_end_was_reported(
    redis: Connection, stores: QueueStores, clock: ManualClock
) -> None:
    driver = Driver(stores, clock)
    await driver.submit("a", [5])
    await driver.work(mark="f")
    parts = [name for name in await names(redis) if "/part/" in name]

    async def lasting() -> list[int]:
        return [await redis.run("TTL", name) for name in parts]

    assert await lasting() == [-1] * 4
    (end,) = await driver.ends()
    await driver.ends(end)
    assert all(0 < left_s <= 7 * 24 * 3600 for left_s in await lasting())
    await driver.steer("a", "retry", lap=1)
    assert set(await lasting()) <= {-1, -2}


async def test_leases_that_somebody_deleted_do_not_stop_the_partition(
    redis: Connection, stores: QueueStores, clock: ManualClock
) -> None:
    driver = Driver(stores, clock)
    await driver.submit("a", [5])
    (held,) = await driver.slices()
    (leases,) = [name for name in await names(redis) if name.endswith("/leases")]
    await redis.run("DEL", leases)
    await driver.submit("b", [2], tenant="bob")
    await driver.wait(LEASE_MS)
    assert await driver.work() == 2
    assert not await driver.settle(held, "d")
    assert (await driver.claim()).wake_ms is None, "nothing is left to expire"


def bulk_of(stores: QueueStores, clock: ManualClock) -> Bulk:
    return Bulk(stores, BulkSettings(partitions=PARTITION + 1), clock, Random(1))


def ids() -> Iterator[str]:
    """Of batches that are in the driver's partition."""
    return (id for id in map(str, count()) if hand(id, PARTITION + 1, False) == [PARTITION])


def keys_of(stores: QueueStores) -> QueueKeys:
    queue = below(stores.queue)
    assert isinstance(queue, RedisQueue)
    return queue._keys


@pytest.mark.parametrize("field", ["packed", "next_offset", "state", "fresh", "at"])
async def test_a_part_that_lost_a_field_is_missing_and_hurts_nobody_else(
    field: str, redis: Connection, stores: QueueStores, clock: ManualClock
) -> None:
    driver, bulk, free = Driver(stores, clock), bulk_of(stores, clock), ids()
    hurt = await bulk.submit("mail", range(300), id=next(free), spread=False)
    (held,) = await driver.slices(20)
    other = await bulk.submit("mail", range(70), id=next(free), tenant="bob", spread=False)
    await redis.run("HDEL", keys_of(stores).part(PARTITION, hurt.parts[0].id), field)
    assert await driver.work(1_000) == 70
    assert not await driver.settle(held, "d")
    assert (await bulk.status(other.id)).state == "done"
    progress = await bulk.status(hurt.id)
    assert (progress.state, progress.missing) == ("lost", [(0, 300)])
    again = await bulk.submit("mail", range(300), id=hurt.id, spread=False)
    assert again.restored == 1
    assert await driver.work(1_000) == 300
    assert (await bulk.status(hurt.id)).state == "done"


@pytest.mark.parametrize("field", ["packed", "digest"])
async def test_a_part_that_lost_a_field_while_it_was_staged_is_staged_again(
    field: str, redis: Connection, stores: QueueStores, clock: ManualClock
) -> None:
    driver, bulk, id = Driver(stores, clock), bulk_of(stores, clock), next(ids())

    async def items() -> AsyncIterator[int]:
        for number in range(1_000):
            if number == 900:
                while not (found := [n for n in await names(redis) if n.endswith("/chunks")]):
                    pass  # the first items are on their way
                await redis.run("HDEL", found[0].removesuffix("/chunks"), field)
            yield number

    batch = await bulk.submit("mail", items(), id=id, spread=False)
    assert (batch.items, (await bulk.status(id)).lost) == (1_000, 0)
    assert await driver.work(2_000) == 1_000


async def test_parts_of_older_versions_did_not_write_all_fields(
    redis: Connection, stores: QueueStores, clock: ManualClock
) -> None:
    driver = Driver(stores, clock)
    await driver.submit("a", [5], release=False)
    zeros = ("numbers", "at", "next_chunk", "next_offset", "done", "failed", "lost", "running")
    await redis.run("HDEL", keys_of(stores).part(PARTITION, "a"), *zeros)
    await driver.steer("a", "release")
    (found,) = await stores.barrier.parts([PartPlace("a", PARTITION, 5)])
    assert found == await driver.counts("a")
    assert await driver.work() == 5


async def test_a_record_that_is_lost_is_rebuilt(
    redis: Connection, stores: QueueStores, clock: ManualClock
) -> None:
    driver, bulk = Driver(stores, clock), bulk_of(stores, clock)
    batch = await bulk.submit("mail", range(30), id=next(ids()), spread=False)
    await redis.run("DEL", keys_of(stores).batch(batch.id))
    async with asyncio.timeout(20):
        await Housekeeping(stores, bulk, clock).look_at_parts(PARTITION)
        await bulk.pause(batch.id)
        await bulk.resume(batch.id)
        assert await driver.work() == 30
        assert (await bulk.status(batch.id)).state == "done"


async def test_a_record_that_is_lost_can_be_opened_and_restored(
    redis: Connection, stores: QueueStores
) -> None:
    batch = Batch("x", "mail", "ada", 1, version=7).tagged()
    for put_back in (stores.batches.open, stores.batches.restore):
        assert await put_back(batch) == batch
        await redis.run("DEL", keys_of(stores).batch("x"))
        assert await put_back(batch) == batch
    assert await stores.batches.update(batch) == batch.next()


async def test_partitions_can_be_on_another_redis(clock: ManualClock) -> None:
    with real(RedisServer) as home, real(RedisServer) as other:
        stores = open_queue(
            home.url,
            clock,
            Random(1),
            BulkSettings(durability="relaxed", places={PARTITION: other.url}),
        )
        part = Part("a", "a", "ada", "mail", NOW_MS, "mail/ada")
        await stores.queue.stage(PARTITION + 1, part, [Chunk(0, 1, b"x")])
        wait = asyncio.ensure_future(stores.bell.wait(60.0))
        assert await ring_until_heard(Driver(stores, clock), wait) == {PARTITION}
        assert "partition_3" in other.command("KEYS", "*")
        assert "partition_3" not in home.command("KEYS", "*")
        assert "partition_4" in home.command("KEYS", "*")
        await stores.close()


@pytest.mark.parametrize("places", [{"x": "redis://a"}, {-2: "redis://a"}, {1: "http://a"}])
def test_places_must_be_numbers_and_urls(places: dict[int, str], clock: ManualClock) -> None:
    with pytest.raises(InvalidSetting, match="places"):
        open_queue("redis://a", clock, Random(1), BulkSettings(places=places))


async def test_scripts_come_back_after_a_restart(clock: ManualClock) -> None:
    with real(RedisServer) as server:
        stores = open_queue(server.url, clock, Random(1), BulkSettings(durability="relaxed"))
        assert await stores.fleet.own(1, "me", 1_000)
        server.command("SCRIPT", "FLUSH")
        assert not await stores.fleet.own(1, "you", 1_000)
        await stores.close()


async def test_a_bell_through_sentinel_rings_too(clock: ManualClock) -> None:
    with real(RedisSentinel) as group:
        stores = open_queue(group.url, clock, Random(1), BulkSettings(durability="relaxed"))
        wait = asyncio.ensure_future(stores.bell.wait(60.0))
        assert await ring_until_heard(Driver(stores, clock), wait) == {PARTITION}
        await stores.close()


async def test_a_bell_without_a_redis_just_waits_and_rings_when_it_is_back(
    clock: ManualClock,
) -> None:
    with real(RedisServer) as server:
        stores = open_queue(server.url, clock, Random(1), BulkSettings(durability="relaxed"))
        server.kill()
        wait = asyncio.ensure_future(stores.bell.wait(3.0))
        await asyncio.sleep(0.1)
        await clock.advance(3.0)
        assert await wait == set()
        server.start()
        wait = asyncio.ensure_future(stores.bell.wait(60.0))
        await clock.advance(3.0)
        assert await ring_until_heard(Driver(stores, clock), wait) == {PARTITION}
        await stores.close()


async def test_two_stages_share_a_redis_without_meeting(
    server: RedisServer, clock: ManualClock
) -> None:
    mine, yours = uuid4().hex, uuid4().hex
    first = open_queue(server.url, clock, Random(1), BulkSettings(stage=mine, durability="relaxed"))
    second = open_queue(
        server.url, clock, Random(1), BulkSettings(stage=yours, durability="relaxed")
    )
    await Driver(first, clock).submit("a", [1])
    assert await second.queue.part(PARTITION, "a") is None
    await first.close()
    await second.close()
