"""Limits on running items and on starts, over all workers and partitions."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count, pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from heatsink.bulk import Actions, BulkSettings, Context, Limit
from heatsink.bulk.limits import (
    Ask,
    HoldRequest,
    Need,
    hold_places,
    lane_and_needs,
    lane_with,
    needs_of,
)
from heatsink.bulk.work.places import midnights, rule_of
from heatsink.client.queue import connect_queue
from heatsink.errors import InvalidSetting, Misconfigured
from heatsink.testing.redis import RedisServer
from tests.servers import real
from tests.waiting import soon

from .world import Running, World, on_virtual_time

ACCOUNTS = Limit("accounts", running=2, key="account")


class Watched:
    """An action that records how many of its items run at a time, by key and in all."""

    def __init__(self, world: World, *limits: Limit, takes_s: float = 0.1, name: str = "send"):
        self.now: Counter[Any] = Counter()
        self.most: Counter[Any] = Counter()
        self.starts_s: list[float] = []
        self.ran: list[Any] = []
        self.world = world
        self.takes_s = takes_s
        world.actions.action(name, limits=limits)(self.handle)

    async def handle(self, item: Any, context: Context) -> None:
        key = item["account"] if isinstance(item, dict) else context.tenant
        self.starts_s.append(self.world.clock.monotonic_s())
        for each in (key, "all"):
            self.now[each] += 1
            self.most[each] = max(self.most[each], self.now[each])
        await asyncio.sleep(self.takes_s)
        for each in (key, "all"):
            self.now[each] -= 1
        self.ran.append(item)


def items_of(accounts: Sequence[str], each: int) -> list[dict[str, Any]]:
    return [{"account": name, "number": n} for n in range(each) for name in accounts]


async def announced(world: World) -> None:
    """Wait until a worker has announced its limits."""
    while not (await world.server.places.declared()).limits:
        await world.clock.sleep(0.1)


@on_virtual_time
async def test_no_more_items_of_a_key_run_than_its_limit() -> None:
    world = World()
    watched = Watched(world, ACCOUNTS)
    async with world.consumer("one"), world.consumer("two"):
        await announced(world)
        items = items_of("abc", 10)
        batch = await world.bulk.submit("send", items)
        progress = await world.bulk.wait(batch.id)
    assert (progress.state, progress.done) == ("done", 30)
    assert sorted(watched.ran, key=str) == sorted(items, key=str)
    assert watched.most == {"a": 2, "b": 2, "c": 2, "all": 6}
    assert watched.starts_s[-1] - watched.starts_s[0] < 10 / 2 * 0.1 * 1.2, "two run nearly always"


@on_virtual_time
async def test_a_limit_holds_over_batches_partitions_and_actions() -> None:
    world = World(partitions=8)
    shared = Limit("shared", running=3)
    mails = Watched(world, shared, name="mail")
    pushes = Watched(world, shared, name="push")
    running: Counter[str] = Counter()
    pushes.now = mails.now = running
    pushes.most = mails.most = most = Counter[Any]()
    async with world.consumer("one"), world.consumer("two"):
        await announced(world)
        batches = [
            await world.bulk.submit(action, range(12), tenant=tenant)
            for action in ("mail", "push")
            for tenant in ("ann", "bob")
        ]
        for batch in batches:
            await world.bulk.wait(batch.id)
    assert most["all"] == 3


@on_virtual_time
async def test_what_waits_for_a_limit_holds_up_nobody() -> None:
    world = World(partitions=1)
    Watched(world, Limit("one", running=1), takes_s=5.0)
    async with world.consumer("one", workers=2):
        await announced(world)
        slow = await world.bulk.submit("send", range(50))
        quick = await world.bulk.submit("note", range(20))
        progress = await world.bulk.wait(quick.id, timeout_s=3.0)
        assert progress.done == 20
        await world.bulk.cancel(slow.id)


@on_virtual_time
async def test_a_key_that_is_full_does_not_hold_up_another_key_of_its_batch() -> None:
    world = World(partitions=1)
    watched = Watched(world, Limit("accounts", running=1, key="account"), takes_s=1.0)
    async with world.consumer("one", workers=4):
        await announced(world)
        items = [*items_of("a", 8), *items_of("b", 8)]
        batch = await world.bulk.submit("send", items)
        await world.bulk.wait(batch.id)
    assert watched.most["all"] == 2


@on_virtual_time
async def test_a_batch_may_have_thousands_of_keys() -> None:
    keys = 3_000
    world = World(partitions=2, deadline_s=60)
    watched = Watched(world, ACCOUNTS, takes_s=0.0)
    async with world.consumer("one"):
        await announced(world)
        batch = await world.bulk.submit("send", items_of([f"{n}" for n in range(keys)], 1))
        assert len(batch.parts) == keys
        await world.bulk.pause(batch.id)
        assert (await world.bulk.status(batch.id)).state == "paused"
        await world.bulk.resume(batch.id)
        progress = await world.bulk.wait(batch.id, timeout_s=600)
    assert (progress.state, progress.done) == ("done", keys)
    assert len(watched.ran) == keys


@on_virtual_time
async def test_a_batch_has_one_copy_of_its_record_in_each_partition() -> None:
    """Else copies would take memory that grows with the square of the number of keys."""
    world = World(partitions=8)
    Watched(world, ACCOUNTS)
    async with world.consumer("one"):
        await announced(world)
    batch = await world.bulk.submit("send", items_of([f"{n}" for n in range(40)], 1))
    copies = Counter(
        partition
        for partition in range(8)
        for share in world.server.queue.held(partition).shares.values()
        if share.record is not None
    )
    assert copies == dict.fromkeys(batch.told, 1)
    assert sum(map(len, batch.told.values())) == 40


@on_virtual_time
async def test_several_limits_hold_at_once_and_nobody_waits_for_ever() -> None:
    world = World()
    first, second = Limit("x", running=2), Limit("y", running=3, per="tenant")
    both = Watched(world, first, second, name="both")
    one = Watched(world, second, ACCOUNTS, name="one")
    async with world.consumer("one"), world.consumer("two"):
        await announced(world)
        batches = [
            await world.bulk.submit(action, items_of("ab", 8), tenant=tenant)
            for action in ("both", "one")
            for tenant in ("ann", "bob")
        ]
        for batch in batches:
            await world.bulk.wait(batch.id, timeout_s=60.0)
    assert both.most["all"] == 2
    assert one.most["a"] <= 2


@on_virtual_time
async def test_a_place_goes_back_while_another_limit_refuses() -> None:
    """An item takes its places all or none: while it waits at a limit, it has none elsewhere."""
    world, first, second = (
        World(partitions=1),
        Limit("first", running=1),
        Limit("second", running=1),
    )
    both = Watched(world, first, second, name="both")
    Watched(world, first, name="one")
    places, rule = world.server.places, rule_of(second, world.clock.now_s())
    elsewhere = HoldRequest("second", rule, "elsewhere", 1, 3_600_000, [Ask("", running=1)])
    await hold_places(places, elsewhere)
    async with world.consumer(workers=4):
        await announced(world)
        batch = await world.bulk.submit("both", range(3))
        await world.clock.sleep(2.0)
        (use,) = await places.use("second", 9)
        assert use.running == 1
        assert use.waiting >= 1
        assert await places.use("first", 9) == [], "released, and nobody waits"
        quick = await world.bulk.submit("one", range(5))
        assert (await world.bulk.wait(quick.id, timeout_s=3.0)).done == 5
        assert not both.ran
        await places.hold(replace(elsewhere, turn=2, asks=[Ask("")]))
        assert (await world.bulk.wait(batch.id, timeout_s=10.0)).done == 3
        assert both.most["all"] == 1


async def test_a_limit_holds_while_its_redis_is_restarted() -> None:
    """The places of running items stay taken, and nobody gets a place for one lease."""
    may_end, two = asyncio.Event(), Limit("two", running=2, per="tenant")
    running: list[int] = []
    most = 0

    async def hold(item: int, _: Context) -> None:
        nonlocal most
        running.append(item)
        most = max(most, len(running))
        await may_end.wait()
        running.remove(item)

    settings = BulkSettings(partitions=4, durability="relaxed")
    async with AsyncExitStack() as stack:
        server = stack.enter_context(real(lambda: RedisServer(append_only=True)))
        queues = [
            await stack.enter_async_context(connect_queue(server.url, settings)) for _ in range(2)
        ]
        workers = []
        for queue in queues:
            actions = Actions()
            actions.action("hold", limits=[two])(hold)
            workers.append(queue.worker(actions, lease_s=4.0, member_s=2.0))
        tasks = [asyncio.create_task(worker.run()) for worker in workers]

        turns = count(2)

        async def granted(turn: int) -> int:
            rule, asks = rule_of(two, time.time()), [Ask('"other"', want=1)]
            request = HoldRequest("two", rule, "other/0/x", turn, 4_000, asks)
            return (await hold_places(queues[0].stores.places, request)).granted[0].places

        async def is_announced() -> bool:
            return "two" in (await queues[0].stores.places.declared()).limits

        await soon(is_announced)
        batches = [await queues[0].bulk.submit("hold", range(n, n + 3)) for n in (0, 3, 6)]
        await soon(lambda: len(running) == 2)
        server.kill()
        server.start()
        await soon(lambda: queues[0].bulk.status(batches[0].id))  # it answers again
        assert [use.running for use in await queues[0].stores.places.use("two", 1)] == [2]
        assert await granted(1) == 0, "not even another tenant gets a place"
        may_end.set()
        for batch in batches:
            assert (await queues[0].bulk.wait(batch.id, 30.0)).done == 3
        assert most == 2
        await soon(lambda: granted(next(turns)))
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)


@on_virtual_time
async def test_rates_of_a_limit_hold_in_every_period() -> None:
    world = World()
    watched = Watched(world, Limit("mail", rates=["10/s", "25/min"]), takes_s=0.01)
    async with world.consumer("one"), world.consumer("two"):
        await announced(world)
        batch = await world.bulk.submit("send", range(40))
        await world.bulk.wait(batch.id)
    starts = sorted(watched.starts_s)
    assert all(late - early >= 1.0 for early, late in zip(starts, starts[10:], strict=False))
    assert all(late - early >= 60.0 for early, late in zip(starts, starts[25:], strict=False))
    assert starts[24] - starts[0] < 4.0, "the quota of the minute is used at the rate of a second"


@on_virtual_time
async def test_a_batch_from_before_any_worker_keeps_to_its_limits() -> None:
    world = World()
    batch = await world.bulk.submit("send", items_of("abc", 40))
    watched = Watched(world, ACCOUNTS, takes_s=0.05)
    async with world.consumer("one"), world.consumer("two"):
        assert (await world.bulk.wait(batch.id)).done == 120
    assert max(watched.most[name] for name in "abc") == 2


@on_virtual_time
async def test_places_of_a_worker_that_died_are_free_after_its_lease() -> None:
    world = World(partitions=1)
    watched = Watched(world, Limit("one", running=1), takes_s=3.0)
    dead = world.start("dead", lease_s=4.0)
    await announced(world)
    batch = await world.bulk.submit("send", range(3))
    while not watched.starts_s:
        await world.clock.sleep(0.1)
    async with world.consumer("two", lease_s=4.0):
        await world.clock.sleep(0.5)
        dead.kill()
        await world.bulk.wait(batch.id)
    assert 4.0 < watched.starts_s[1] - watched.starts_s[0] < 16.0


@on_virtual_time
async def test_a_worker_that_cannot_renew_stops_its_handlers_before_its_lease_ends() -> None:
    world = World(partitions=1)
    cancelled_s: list[float] = []

    async def slow(*_: Any) -> None:
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            cancelled_s.append(world.clock.monotonic_s())
            raise

    world.actions.action("slow", limits=[Limit("one", running=1)], timeout_s=100)(slow)
    running = world.start("one", lease_s=3.0)
    await announced(world)
    await world.bulk.submit("slow", [1])
    while not (await world.server.places.use("one", 1)):
        await world.clock.sleep(0.1)
    cut_s = world.clock.monotonic_s()
    running.process.faults.cut = True
    calls = len(running.process.link.landings)
    while not cancelled_s:
        await world.clock.sleep(0.1)
    assert cancelled_s[0] - cut_s < 3.0
    assert calls < 50
    running.kill()


@on_virtual_time
async def test_a_limit_that_an_operator_changes_holds_for_running_batches() -> None:
    world = World(partitions=2)
    watched = Watched(world, Limit("one", running=1), takes_s=0.1)
    worker = world.start("one")
    await announced(world)
    batch = await world.bulk.submit("send", range(400))
    await world.clock.sleep(2.0)
    assert watched.most["all"] == 1
    await changed(worker, {"one": "3"})
    assert watched.most["all"] == 3
    await changed(worker, {"one": "0"})
    ran = len(watched.ran)
    await changed(worker, {"one": "0"})
    assert len(watched.ran) == ran, "nothing starts at a limit of 0"
    await changed(worker, {})
    watched.most.clear()
    await world.clock.sleep(2.0)
    assert watched.most["all"] == 1
    await world.bulk.cancel(batch.id)
    await worker.stop()


async def changed(worker: Running, limits: dict[str, str]) -> None:
    """Set limits in the worker's process, as its registry does, and wait until they are followed.

    Items that run at this moment end within this time.
    """
    worker.consumer._bulk.adopt(BulkSettings(limits=limits))
    await worker.process.clock.sleep(1.5)


@on_virtual_time
async def test_a_worker_that_declares_a_limit_in_another_way_does_not_start() -> None:
    world = World()
    Watched(world, ACCOUNTS)
    async with world.consumer("one"):
        await announced(world)
        world.actions = Actions()
        Watched(world, Limit("accounts", running=3, key="account"))
        with pytest.raises(Misconfigured, match="as `at most 2 running per account` by"):
            await world.start("two")._task


def test_a_limit_that_two_actions_share_is_declared_once() -> None:
    actions = Actions()

    async def handle(item: Any, context: Context) -> None: ...

    actions.action("one", limits=[ACCOUNTS])(handle)
    with pytest.raises(InvalidSetting, match="limit 'accounts' is declared as"):
        actions.action("two", limits=[Limit("accounts", running=3, key="account")])(handle)
    actions.action("three", limits=[Limit("accounts", running=2, key="account")])(handle)


@pytest.mark.parametrize(
    ("about", "wrong"),
    [
        ({"name": "no/slash", "running": 1}, "name must be 1 to 100"),
        ({"name": "a"}, "limits nothing"),
        ({"name": "a", "running": -1}, "running must be"),
        ({"name": "a", "rates": ["fast"]}, "rates must be texts like"),
        ({"name": "a", "rates": ["9/day Mars"]}, "unknown time zone"),
        ({"name": "a", "rates": ["9/s Europe/Berlin"]}, "rates must be texts like"),
        ({"name": "a", "running": 1, "per": "month"}, "per must be 'tenant' or 'action'"),
        ({"name": "a", "running": 1, "keys": "x"}, "did you mean 'key'"),
    ],
)
def test_a_limit_that_is_wrong_names_the_field(about: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidSetting, match=wrong):
        Limit(**about)


def test_an_item_needs_its_limits_in_the_order_of_their_names() -> None:
    limits = [
        Limit("a", running=1, per="tenant", key="user.id").counting,
        Limit("b", running=1).counting,
    ]
    assert needs_of(limits, "send", "acme", {"user": {"id": 7}}) == (
        Need("a", '["acme",7]'),
        Need("b", ""),
    )
    assert needs_of(limits, "send", "acme", "plain")[0].key == '["acme",null]'


def test_a_lane_carries_the_needs_of_its_items() -> None:
    needs = (Need("a", '"x\x00limits:"'), Need("b", ""))
    assert lane_and_needs(lane_with("send/acme", needs)) == ("send/acme", needs)
    assert lane_and_needs("send/acme") == ("send/acme", ())
    assert lane_and_needs("send/\x00limits:[") == ("send/\x00limits:[", ())


def test_a_day_of_a_zone_may_have_25_hours() -> None:
    days = midnights("Europe/Berlin", 1_792_920_000.0)  # 2026-10-25, when the clocks go back
    hours = {(late - early) / 3_600_000 for early, late in pairwise(days)}
    assert hours == {24.0, 25.0}
