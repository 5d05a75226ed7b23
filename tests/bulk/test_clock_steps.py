"""The clock of the queue's server is set: what waits goes on, what is held stays held."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from uuid import uuid4

import msgspec
import pytest

from heatsink.bulk.batch import Rate
from heatsink.bulk.settings import BulkSettings
from heatsink.bulk.store import QueueStores, Setback, Slice
from heatsink.primitives.clock import SystemClock
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.stores.redis.connection import Connection
from heatsink.stores.redis.queue import open_queue
from heatsink.stores.redis.queue.keys import QueueKeys
from heatsink.testing import ManualClock, run_on_virtual_time
from heatsink.testing.redis import RedisServer
from tests.servers import patient, patient_url, real

from .conftest import redis_queue
from .driver import LEASE_MS, PARTITION, Driver
from .stepped import HOUR_S, ServerClock, Stepped
from .world import World

LANE = "mail/ada"
STEPS = {
    "back": (-HOUR_S,),
    "forward": (HOUR_S,),
    "forward and back": (HOUR_S, -HOUR_S),
    "back and forward": (-HOUR_S, HOUR_S),
}


@pytest.fixture(params=["memory", "server", "cluster"])
async def stepped(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Stepped]:
    server, stage = ServerClock(clock), f"test-{uuid4().hex}"
    in_memory = MemoryQueueServer(server)

    @asynccontextmanager
    async def join(process: ManualClock) -> AsyncIterator[QueueStores]:
        if request.param == "memory":
            yield in_memory.stores(process)
            return
        url = request.getfixturevalue(request.param).url
        async with redis_queue(url, process, server, stage) as opened:
            yield opened

    async with join(clock) as stores:
        yield Stepped(Driver(stores, clock), server, join)


async def step_each_second(stepped: Stepped, steps: tuple[float, ...]) -> None:
    """A process that looks at all slots, as workers do, while the clock is set."""
    for seconds in steps:
        stepped.step(seconds)
        await look(stepped)
        await stepped.driver.wait(1_000)
        await look(stepped)


async def look(stepped: Stepped) -> None:
    await stepped.stores.queue.chores(PARTITION, [])
    await stepped.stores.limits.reserve(LANE, 0, 0)
    await stepped.stores.fleet.join("me", ["mail"], 5_000)


# -- what waits goes on ------------------------------------------------------------------------


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
async def test_a_rated_lane_goes_on(stepped: Stepped, steps: tuple[float, ...]) -> None:
    await stepped.stores.limits.declare(LANE, Rate(10))
    await stepped.stores.limits.reserve(LANE, 5, 1_000)
    await step_each_second(stepped, steps)
    await stepped.driver.wait(1_000)
    assert (await stepped.stores.limits.reserve(LANE, 1, 1_000)).wait_ms == [0.0]


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
async def test_an_item_in_back_off_comes_back(stepped: Stepped, steps: tuple[float, ...]) -> None:
    driver = stepped.driver
    await driver.submit("a", [1])
    (found,) = await driver.slices()
    await driver.settle(found, "r", Setback(0, delay_ms=5_000))
    await step_each_second(stepped, steps)
    assert await driver.slices() == []
    await driver.wait(5_000)
    assert len(await driver.slices()) == 1


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
async def test_a_dead_workers_partition_is_free_in_seconds(
    stepped: Stepped, clock: ManualClock, steps: tuple[float, ...]
) -> None:
    await stepped.stores.fleet.own(PARTITION, "dead", 5_000)
    await step_each_second(stepped, steps)
    async with stepped.join(clock) as other:
        assert not await other.fleet.own(PARTITION, "other", 5_000)
        await stepped.driver.wait(2_000)
        await look(stepped)
        await stepped.driver.wait(2_000)
        assert await other.fleet.own(PARTITION, "other", 5_000)


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
async def test_a_dead_workers_items_run_again_after_its_lease(
    stepped: Stepped, steps: tuple[float, ...]
) -> None:
    driver = stepped.driver
    await driver.submit("a", [1])
    await driver.slices()
    await step_each_second(stepped, steps)
    await driver.wait(LEASE_MS)
    assert len(await driver.slices()) == 1


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
async def test_a_dead_member_is_forgotten_in_seconds(
    stepped: Stepped, steps: tuple[float, ...]
) -> None:
    await stepped.stores.fleet.join("dead", ["push"], 3_000)
    await step_each_second(stepped, steps)
    await stepped.driver.wait(3_000)
    assert await stepped.stores.fleet.join("me", ["mail"], 5_000) == (["me"], ["mail"])
    assert await stepped.stores.fleet.offered() == ["mail"]


async def test_a_batch_is_as_old_as_it_is_whatever_the_clock_says(stepped: Stepped) -> None:
    driver = stepped.driver
    await driver.submit("a", [1])
    await driver.claim(0)
    stepped.step(HOUR_S)
    await driver.claim(0)
    await driver.wait(1_000)
    await driver.claim(0)
    assert (await stepped.stores.queue.load(PARTITION)).oldest_ms == 1_000


# -- what is held stays held -------------------------------------------------------------------


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
async def test_no_lease_is_lost_while_its_worker_keeps_it(
    stepped: Stepped, steps: tuple[float, ...]
) -> None:
    driver = stepped.driver
    await driver.submit("a", [2])
    (found,) = await driver.slices()
    for seconds in steps:
        stepped.step(seconds)
        for _ in range(20):
            assert await driver.slices() == []
            assert await driver.beat(found.attempt) == []
            await driver.wait(1_000)
    assert await driver.settle(found, "d")


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("skew_s", [0.0, -90.0, HOUR_S, 1e6])
async def test_no_partition_is_taken_from_a_worker_that_is_there(
    stepped: Stepped, steps: tuple[float, ...], skew_s: float
) -> None:
    """By another process, which comes first after the step and may have a wrong clock."""
    await stepped.stores.fleet.own(PARTITION, "me", 5_000)
    process = ManualClock(stepped.driver.clock.now_s() + skew_s)
    async with stepped.join(process) as other:
        for seconds in steps:
            stepped.step(seconds)
            for _ in range(20):
                assert not await other.fleet.own(PARTITION, "other", 5_000)
                assert await stepped.stores.fleet.own(PARTITION, "me", 5_000)
                await stepped.driver.wait(1_000)
                await process.advance(1.0)


async def test_no_start_is_booked_twice_by_a_clock_that_is_set(stepped: Stepped) -> None:
    limits = stepped.stores.limits
    await limits.declare(LANE, Rate(10))
    starts_ms: list[float] = []
    for seconds in (0.0, HOUR_S, 0.0, -HOUR_S, HOUR_S, HOUR_S, 0.0, -HOUR_S, -HOUR_S) * 3:
        stepped.step(seconds)
        grants = await limits.reserve(LANE, 50, 1_000)
        now_ms = stepped.driver.clock.monotonic_s() * 1000
        starts_ms += [now_ms + wait_ms for wait_ms in grants.wait_ms]
        await stepped.driver.wait(300)
    gaps_ms = [late - early for early, late in pairwise(starts_ms)]
    assert len(starts_ms) > 20
    assert min(gaps_ms) >= 101.0


# -- time that did pass ------------------------------------------------------------------------


async def test_an_hour_in_which_nobody_called_has_passed_for_who_was_there(
    stepped: Stepped,
) -> None:
    driver = stepped.driver
    await driver.submit("a", [1])
    await driver.slices()
    await driver.wait(HOUR_S * 1000)
    assert len(await driver.slices()) == 1


@pytest.mark.parametrize(("skew_s", "after_s"), [(0.0, 2), (-90.0, 10), (-HOUR_S, 10), (1e6, 10)])
async def test_an_hour_is_believed_in_seconds_by_new_processes(
    stepped: Stepped, skew_s: float, after_s: int
) -> None:
    """Sooner if their clocks say the same. Nobody loses by that what he holds meanwhile."""
    driver = stepped.driver
    await driver.submit("a", [1, 1])
    late, kept = await driver.slices()
    await driver.settle(late, "r", Setback(0, delay_ms=1_800_000))
    await driver.settle(kept, "b")
    await stepped.stores.fleet.disown(PARTITION, "me")
    await driver.wait(HOUR_S * 1000)
    process = ManualClock(driver.clock.now_s() + skew_s)
    async with stepped.join(process) as other:
        worker = Driver(other, process, attempts=10)
        (held,) = await worker.slices()
        waited_s = 0
        back: list[Slice] = []
        while not back and waited_s < 100:
            await driver.wait(1_000)
            await worker.wait(1_000)
            waited_s += 1
            back = await worker.slices()
            assert await worker.beat(held.attempt) == []
        assert waited_s == after_s
        assert [item.tries for item in back] == [1]
        assert await worker.settle(held, "d")


async def test_a_step_while_nobody_called_costs_no_more_than_that_time(stepped: Stepped) -> None:
    """The server was away for a minute and came back an hour ahead."""
    driver = stepped.driver
    await driver.submit("a", [2])
    (found,) = await driver.slices(1)
    await driver.settle(found, "r", Setback(0, delay_ms=300_000))
    await driver.claim(0)
    stepped.step(HOUR_S)
    await driver.wait(60_000)
    await driver.claim(0)
    assert (await driver.counts("a")).backoff_ms == 300_000


# -- whole workers -----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_a_rated_batch_ends_in_time_and_no_faster(steps: tuple[float, ...]) -> None:
    async def run() -> list[float]:
        world = World(2)
        async with world.consumer("one"), world.consumer("two"):
            batch = await world.bulk.submit("note", range(60), rate="10/s")
            for seconds in steps:
                await world.clock.sleep(1.5)
                world.clock.offset_s += seconds
            assert (await world.bulk.wait(batch.id, 10.0)).done == 60
        return world.starts_s

    starts_s = run_on_virtual_time(run())
    assert len(starts_s) == 60
    assert all(late - early >= 1.0 for early, late in zip(starts_s, starts_s[10:], strict=False))


# -- on a real server --------------------------------------------------------------------------


async def test_the_clock_of_a_real_server_goes_back(server: RedisServer) -> None:
    """By its own TIME: what the slot last saw of it lies an hour ahead."""
    stage = f"test-{uuid4().hex}"
    stores = open_queue(
        patient_url(server.url),
        SystemClock(),
        Random(1),
        BulkSettings(stage=stage, durability="relaxed"),
    )
    connection = Connection(patient(server.url), SystemClock(), Random(1))
    meta = f"{QueueKeys(stage).partition(PARTITION)}meta"
    assert await stores.fleet.own(PARTITION, "dead", 200)
    times = msgspec.msgpack.decode(await connection.run("HGET", meta, "time"))
    times[0] += HOUR_S * 1000
    await connection.run("HSET", meta, "time", msgspec.msgpack.encode(times))
    clock = SystemClock()
    give_up_s = clock.monotonic_s() + 30.0
    while not await stores.fleet.own(PARTITION, "other", 5_000):
        assert clock.monotonic_s() < give_up_s
        await clock.sleep(0.02)
    await connection.close()
    await stores.close()


async def test_a_slots_time_moves_with_it_to_a_server_whose_clock_is_behind(
    server: RedisServer, clock: ManualClock
) -> None:
    stage, behind = f"test-{uuid4().hex}", ServerClock(clock)
    behind.offset_s = -HOUR_S
    async with redis_queue(server.url, clock, stage=stage) as first:
        driver = Driver(first, clock)
        await driver.submit("a", [2])
        (found,) = await driver.slices(1)
        await driver.settle(found, "r", Setback(0, delay_ms=5_000))
    with real(RedisServer) as moved:
        await copy_keys(server.url, moved.url, f"/{stage}/*")
        async with redis_queue(moved.url, clock, behind, stage) as second:
            driver = Driver(second, clock, attempts=10)
            assert len(await driver.slices()) == 1
            assert await driver.slices() == []
            await driver.wait(5_000)
            assert [item.tries for item in await driver.slices()] == [1]


async def copy_keys(source: str, target: str, pattern: str) -> None:
    ends = [Connection(patient(url), SystemClock(), Random(1)) for url in (source, target)]
    for key in await ends[0].run("KEYS", pattern):
        await ends[1].run("RESTORE", key, 0, await ends[0].run("DUMP", key))
    for end in ends:
        await end.close()
