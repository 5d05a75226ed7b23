"""The short way by which the script accepts a lone single writes what its long way writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace
from redis import Redis

from heatsink.bulk.batch import Rate, digest_of
from heatsink.bulk.controls import Controls
from heatsink.bulk.store import Chunk, QueueStores, Single
from heatsink.primitives.slot_time import SlotWitness
from heatsink.stores.redis.connection import RedisRefused
from heatsink.stores.redis.queue.scripts import Script, SlotClock
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisServer

from .conftest import redis_queue
from .driver import NOW_MS, PARTITION, Driver, listening, single_of

Scene = Callable[[QueueStores, Driver], Awaitable[None]]
STEP_MS = 30_000
LONG = "clock numbers", "state rotation"
SHORT = ("clock lone",)  # the rest of the script fails without the files that it needs


async def stand(stores: QueueStores, driver: Driver) -> None:
    claimed = await driver.claim(attempt="x", bell=stores.bell.address)
    assert claimed.kept_ms


async def worked_before(stores: QueueStores, driver: Driver) -> None:
    for id, tenant in ("one", "ada"), ("two", "bob"), ("three", "bob"):
        await stores.singles.accept(PARTITION, [single_of(id, tenant=tenant)])
        for held in await driver.slices():
            await driver.settle(held, "d", used_us=77)
    await stand(stores, driver)


async def took_one_before(stores: QueueStores, driver: Driver) -> None:
    await stand(stores, driver)
    await stores.singles.accept(PARTITION, [single_of("one")])
    await driver.wait(20)
    assert (await driver.claim(attempt="y", bell=stores.bell.address)).kept_ms


async def stood_long(stores: QueueStores, driver: Driver) -> None:
    await stand(stores, driver)
    await driver.wait(30_000)


async def nobody_stands(_: QueueStores, driver: Driver) -> None:
    await driver.claim()


async def another_waits(stores: QueueStores, driver: Driver) -> None:
    await stand(stores, driver)
    await driver.submit("waits", [1], tenant="bob")


async def another_owns(stores: QueueStores, driver: Driver) -> None:
    await stand(stores, driver)
    await stores.fleet.disown(PARTITION, "me")
    await stores.fleet.own(PARTITION, "you", 60_000)


async def ownership_ended(stores: QueueStores, driver: Driver) -> None:
    await stand(stores, driver)
    await driver.wait(60_000)


async def nobody_listens(_: QueueStores, driver: Driver) -> None:
    claimed = await driver.claim(attempt="x", bell="nobody")
    assert claimed.kept_ms


async def clock_is_doubted(stores: QueueStores, driver: Driver) -> None:
    await stand(stores, driver)
    queue = stores.singles.below._queue  # type: ignore[attr-defined]
    witness = SlotWitness(driver.clock)
    queue._time = SlotClock(witness, lambda: driver.clock.now_s() * 1000 + STEP_MS)


async def clock_was_doubted(stores: QueueStores, driver: Driver) -> None:
    await clock_is_doubted(stores, driver)
    for _ in range(5):
        await stores.fleet.own(PARTITION, "me", 60_000)
        await driver.wait(2_000)


async def tenant_is_paused(stores: QueueStores, driver: Driver) -> None:
    await stores.queue.control(PARTITION, Controls("a", 1, tenants=frozenset({"ada"})))
    await stand(stores, driver)


async def tenant_has_weight(stores: QueueStores, driver: Driver) -> None:
    await stores.queue.control(PARTITION, Controls("a", 1, weights={"ada": 4.0}))
    await stand(stores, driver)


async def lane_has_rate(stores: QueueStores, driver: Driver) -> None:
    await stores.limits.declare("mail/ada", Rate(5))
    await stand(stores, driver)


async def was_accepted(stores: QueueStores, driver: Driver) -> None:
    await stores.singles.accept(PARTITION, [single_of("a")])
    await driver.work()
    await stand(stores, driver)


def large() -> Single:
    body = b"x" * 2_000
    single = single_of("a")
    place = replace(single.record.parts[0], digest=digest_of(body))
    return replace(single, record=replace(single.record, parts=(place,)), chunk=Chunk(0, 1, body))


LONE = single_of("a")
TAKEN: dict[str, tuple[Scene, Single]] = {
    "first": (stand, LONE),
    "worked_before": (worked_before, LONE),
    "another_tenant": (worked_before, single_of("a", tenant="carl")),
    "took_one_before": (took_one_before, LONE),
    "stood_long": (stood_long, LONE),
    "with_a_weight": (worked_before, single_of("a", weight=2.5)),
    "with_a_webhook": (stand, single_of("a", on_done="https://example.org")),
}
LEFT: dict[str, tuple[Scene, Single]] = {
    **{
        scene.__name__: (scene, LONE)
        for scene in (
            *(nobody_stands, another_waits, another_owns, ownership_ended, nobody_listens),
            *(clock_is_doubted, clock_was_doubted),
            *(tenant_is_paused, tenant_has_weight, lane_has_rate, was_accepted),
        )
    },
    "large": (stand, large()),
    "later": (stand, single_of("a", start_ms=NOW_MS + 5_000)),
    "with_a_limit": (stand, single_of("a", limits=(("all", "", ""),))),
    "with_a_rate": (stand, single_of("a", rate=Rate(5))),
    "with_a_result": (stand, single_of("a", result_bytes=100, keep_ms=60_000)),
}


def written(server: RedisServer, stage: str) -> dict[str, tuple[str, bool]]:
    """All that a stage has in Redis, without the stage's name; and which keys expire."""
    redis: Any = Redis.from_url(server.url)
    reads: dict[bytes, Callable[[bytes], Any]] = {
        b"hash": lambda key: sorted(numbers_of(redis.hgetall(key)).items()),
        b"zset": lambda key: redis.zrange(key, 0, -1, withscores=True),
        b"set": lambda key: sorted(redis.smembers(key)),
        b"string": redis.get,
    }
    keys = redis.keys(f"*{stage}*")
    values = {key: repr(reads[redis.type(key)](key)).replace(stage, "") for key in keys}
    return {key.decode().replace(stage, ""): (values[key], redis.pttl(key) > 0) for key in keys}


def numbers_of(fields: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The fields of a hash. A number that is not there is 0."""
    return {name: value for name, value in fields.items() if (name, value) != (b"virtual", b"0")}


async def accepted(
    server: RedisServer, scene: Scene, single: Single, levels: tuple[str, ...] = ()
) -> tuple[Any, ...]:
    clock, stage = ManualClock(), f"test-{uuid4().hex}"
    async with redis_queue(server.url, clock, stage=stage) as stores:
        await listening(stores, server)
        await scene(stores, Driver(stores, clock))
        if levels:
            scripts = stores.singles.below._queue._scripts  # type: ignore[attr-defined]
            scripts["accept"] = Script("partition/accept", *levels)
        answer = await stores.singles.accept(PARTITION, [single])
        return answer, written(server, stage)


@pytest.mark.parametrize("name", TAKEN)
async def test_the_short_way_writes_what_the_long_way_writes(
    server: RedisServer, name: str
) -> None:
    short = await accepted(server, *TAKEN[name], SHORT)
    assert short[0] == [True]
    assert short == await accepted(server, *TAKEN[name], LONG)


@pytest.mark.parametrize("name", LEFT)
async def test_where_more_is_to_be_done_the_short_way_changes_nothing(
    server: RedisServer, name: str
) -> None:
    assert await accepted(server, *LEFT[name]) == await accepted(server, *LEFT[name], LONG)
    with pytest.raises(RedisRefused, match="script"):
        await accepted(server, *LEFT[name], SHORT)
