"""What every store must do when a partition moves to another server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from random import Random
from uuid import uuid4

import pytest

from heatsink.bulk import Bulk, BulkSettings
from heatsink.bulk.moving import ANY_VERSION
from heatsink.bulk.plan import Place, QueuePlan, Spot, bare
from heatsink.bulk.reconcile import routed
from heatsink.bulk.store import Chunk, Part, QueueStores
from heatsink.errors import Conflict, InvalidSetting, NotFound, Unavailable
from heatsink.stores.memory.queue import FIRST, MemoryQueueServer
from heatsink.stores.redis.queue import open_queue
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisServer
from tests.servers import patient_url, real

from .driver import NOW_MS, PARTITION, Driver

PLAN = QueuePlan(8, 8)


@dataclass
class Two:
    """Two processes on one queue, and the URL of a second server."""

    one: QueueStores
    two: QueueStores
    url: str
    clock: ManualClock

    def bulk(self, stores: QueueStores) -> Bulk:
        return Bulk(stores, BulkSettings(partitions=8), self.clock, Random(1))


@pytest.fixture(scope="module")
def second() -> Iterator[RedisServer]:
    with real(RedisServer) as started:
        yield started


@pytest.fixture(params=["memory", "server"])
async def two(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Two]:
    if request.param == "memory":
        server = MemoryQueueServer(clock)
        yield Two(server.stores(), routed(server.unrouted(), FIRST), "memory://second", clock)
        return
    home: RedisServer = request.getfixturevalue("server")
    other: RedisServer = request.getfixturevalue("second")
    settings = BulkSettings(stage=f"test-{uuid4().hex}", durability="relaxed")
    opened = [
        open_queue(patient_url(home.url), clock, Random(1), settings, lambda: clock.now_s() * 1000)
        for _ in range(2)
    ]
    yield Two(opened[0], opened[1], patient_url(other.url), clock)
    for stores in opened:
        await stores.close()


def spot(url: str = "") -> Spot:
    return Spot(PARTITION, url, ANY_VERSION)


async def moved(two: Two) -> Bulk:
    bulk = two.bulk(two.one)
    assert (await bulk.place(PARTITION, two.url)).place == bare(two.url)
    return bulk


async def test_a_partition_with_parts_is_not_given_away(two: Two) -> None:
    driver = Driver(two.one, two.clock)
    part = Part("a", "a", "ada", "mail", NOW_MS, "mail/ada")
    await two.one.queue.stage(PARTITION, part, [Chunk(0, 2, b"x")])
    close = two.one.moves.close_place
    left = await close(spot(), 5, "there")
    assert (left.closed, left.parts, left.ends) == (-1, 1, 0), "it is staged"
    assert await two.one.queue.steer(PARTITION, "a", "release")
    assert (await close(spot(), 5, "there")).items == 2, "it waits"
    slices = (await driver.claim(2)).slices
    assert (await close(spot(), 5, "there")).items == 2, "it runs"
    assert await driver.settle(slices[0], "d")
    left = await close(spot(), 5, "there")
    assert (left.closed, left.parts, left.ends) == (-1, 0, 1), "its end is not recorded"
    await two.one.queue.chores(PARTITION, (await two.one.queue.chores(PARTITION, [])).ends)
    assert (await close(spot(), 5, "there")).closed == 5
    assert (await close(spot(), 4, "elsewhere")).to == "there", "the newest move stays"


async def test_a_closed_place_refuses_everything_from_processes_with_an_older_plan(
    two: Two,
) -> None:
    assert (await two.one.moves.close_place(spot(), 0, "there")).closed == 0
    queue, fleet = two.two.queue, two.two.fleet
    part = Part("a", "a", "ada", "mail", NOW_MS, "mail/ada")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: queue.stage(PARTITION, part, [Chunk(0, 2, b"x")]),
        lambda: queue.steer(PARTITION, "a", "release"),
        lambda: queue.settle(PARTITION, [], [], 1_000),
        lambda: queue.chores(PARTITION, []),
        lambda: queue.load(PARTITION),
        lambda: queue.part(PARTITION, "a"),
        lambda: queue.failures(PARTITION, "a", "", 10),
        lambda: two.two.losses.gaps(PARTITION, "a", 1),
        lambda: two.two.losses.live_parts(PARTITION, "", 10),
        lambda: two.two.losses.record_of(PARTITION, "a"),
        lambda: fleet.own(PARTITION, "me", 1_000),
        lambda: fleet.disown(PARTITION, "me"),
    ]
    for call in calls:
        with pytest.raises(Unavailable, match="queue partition 3 moves to there"):
            await call()
    assert await queue.part(PARTITION + 1, "a") is None, "other partitions are as before"
    await fleet.plan(PLAN)
    await fleet.change(QueuePlan(8, 8, 1, places={PARTITION: Place("", 1)}))
    for call in calls:
        await call()


async def test_a_process_with_an_old_plan_follows_a_partition_that_moved(two: Two) -> None:
    assert await two.two.queue.part(PARTITION, "a") is None
    await moved(two)
    part = Part("a", "a", "ada", "mail", NOW_MS, "mail/ada")
    await two.two.queue.stage(PARTITION, part, [Chunk(0, 2, b"x")])
    found = await two.one.queue.part(PARTITION, "a")
    assert found is not None
    assert found.size == 2
    below = two.one.queue.below  # type: ignore[attr-defined]
    assert await below.part(Spot(PARTITION, "", ANY_VERSION), "a") is None, "not at the old place"


async def test_what_has_ended_moves_along_and_can_be_retried(two: Two) -> None:
    driver = Driver(two.one, two.clock)
    await driver.submit("a", [3])
    slices = (await driver.claim(3)).slices
    await driver.settle(slices[0], "dff")
    await two.one.queue.chores(PARTITION, (await two.one.queue.chores(PARTITION, [])).ends)
    before = await two.one.queue.part(PARTITION, "a")
    failures = await two.one.queue.failures(PARTITION, "a", "", 10)
    load = await two.one.queue.load(PARTITION)
    bulk = await moved(two)
    assert before is not None
    assert await two.two.queue.part(PARTITION, "a") == before
    assert await two.two.queue.failures(PARTITION, "a", "", 10) == failures
    after = await two.two.queue.load(PARTITION)
    assert (after.done, after.failed, after.used_us) == (load.done, load.failed, load.used_us)
    assert await two.two.queue.steer(PARTITION, "a", "retry", 1)
    left = await two.one.moves.close_place(spot(two.url), 99, "away")
    assert (left.closed, left.items) == (-1, 2)
    with pytest.raises(NotFound):
        await bulk.place(8, two.url)


async def test_a_partition_moves_there_and_back_and_keeps_what_ended(two: Two) -> None:
    driver = Driver(two.one, two.clock)
    await driver.submit("a", [1])
    await driver.settle((await driver.claim(1)).slices[0], "f")
    await two.one.queue.chores(PARTITION, (await two.one.queue.chores(PARTITION, [])).ends)
    bulk = await moved(two)
    for url in ("home", two.url, "home", "home"):
        await bulk.place(PARTITION, url)
        found = await two.two.queue.part(PARTITION, "a")
        assert found is not None
        assert found.failed == 1


async def test_a_place_with_parts_of_another_queue_is_refused(two: Two) -> None:
    below = two.one.queue.below  # type: ignore[attr-defined]
    part = Part("a", "a", "ada", "mail", NOW_MS, "mail/ada")
    await below.stage(Spot(PARTITION, two.url), part, [Chunk(0, 2, b"x")])
    bulk = two.bulk(two.one)
    with pytest.raises(Conflict, match="already holds parts of partition 3"):
        await bulk.place(PARTITION, two.url)
    assert (await bulk.places())[PARTITION].place == "home"
    assert not (await bulk.plan()).moves, "the move is given up"
    assert await two.two.queue.part(PARTITION, "a") is None


async def test_copies_of_a_move_that_was_given_up_are_not_in_the_way(two: Two) -> None:
    driver = Driver(two.one, two.clock)
    await driver.submit("a", [1])
    await driver.settle((await driver.claim(1)).slices[0], "f")
    await two.one.queue.chores(PARTITION, (await two.one.queue.chores(PARTITION, [])).ends)
    plan = (await two.one.fleet.plan(PLAN)).moving(PARTITION, two.url)
    await two.one.fleet.change(plan)
    assert await two.one.moves.prepare(spot(two.url), plan.version) == plan.version
    assert (await two.one.moves.close_place(spot(), plan.version, "x")).closed == plan.version
    await two.one.moves.copy(spot(), spot(two.url), plan.version, "a")
    bulk = two.bulk(two.two)
    await bulk.place(PARTITION, "home")
    assert await two.two.queue.steer(PARTITION, "a", "retry", 1), "it is open again"
    await two.one.moves.copy(spot(), spot(two.url), plan.version, "a")
    assert (await two.one.moves.close_place(spot(), plan.version + 5, "x")).items == 1


async def test_a_mover_that_dies_leaves_a_move_that_another_process_finishes(two: Two) -> None:
    driver = Driver(two.one, two.clock)
    await driver.submit("a", [1])
    await driver.settle((await driver.claim(1)).slices[0], "f")
    await two.one.queue.chores(PARTITION, (await two.one.queue.chores(PARTITION, [])).ends)
    async for step in two.bulk(two.one).moving(PARTITION, two.url):
        if step.step == "copying":
            break
    with pytest.raises(Unavailable, match="moves to"):
        await two.two.queue.part(PARTITION, "a")
    other = two.bulk(two.two)
    assert (await other.places())[PARTITION].moves_to == bare(two.url)
    assert (await other.place(PARTITION, two.url)).place == bare(two.url)
    found = await two.one.queue.part(PARTITION, "a")
    assert found is not None
    assert found.failed == 1


async def test_the_login_of_a_place_may_change_and_is_never_shown(two: Two) -> None:
    bulk = await moved(two)
    with_login = two.url.replace("://", "://:secret@")
    plan = (await bulk.plan()).placed(PARTITION, with_login)
    await two.one.fleet.change(plan)
    await two.one.fleet.change(plan.placed(PARTITION, two.url))
    seen = await bulk.places()
    assert "secret" not in str(seen)
    before = (await bulk.plan()).place(PARTITION)
    await bulk.place(PARTITION, bare(two.url))
    assert (await bulk.plan()).place(PARTITION) == before, "without a login, the known one stays"


async def test_the_server_itself_under_another_name_is_refused(
    two: Two, request: pytest.FixtureRequest
) -> None:
    if two.url.startswith("memory"):
        return
    home: RedisServer = request.getfixturevalue("server")
    bulk = two.bulk(two.one)
    with pytest.raises(InvalidSetting, match="is the server that holds partition 3"):
        await bulk.place(PARTITION, home.url.replace("127.0.0.1", "localhost"))
    assert not (await bulk.plan()).moves
    assert await two.two.queue.part(PARTITION, "a") is None
