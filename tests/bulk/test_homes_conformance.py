"""What every store must do with batches, limits, the fleet and the bell."""

from __future__ import annotations

import asyncio

import pytest

from heatsink.bulk.batch import Batch, PartPlace, Rate
from heatsink.bulk.plan import QueuePlan
from heatsink.bulk.store import ANNOUNCED_MS, ClaimRequest, QueueStores
from heatsink.testing import ManualClock

from .driver import PARTITION, Driver, ring_until_heard


def batch(id: str, submitted_ms: int = 1, tenant: str = "ada") -> Batch:
    return Batch(id, "mail", tenant, submitted_ms)


# -- batches -----------------------------------------------------------------------------------


async def test_the_first_batch_of_an_id_is_the_one_that_is_kept(stores: QueueStores) -> None:
    first = Batch("a/{b}\n", "mail", "ada", 5, generation="one", rate=Rate(5, 60.0))
    assert await stores.batches.open(first) == first
    assert await stores.batches.open(Batch("a/{b}\n", "push", "bob", 6)) == first
    assert await stores.batches.get("a/{b}\n") == first
    assert await stores.batches.get("b") is None


async def test_an_update_replaces_only_the_version_it_read(stores: QueueStores) -> None:
    first = await stores.batches.open(batch("a"))
    places = (PartPlace("p", 3, 10),)
    changed = Batch("a", "mail", "ada", 1, state="running", parts=places)
    second = await stores.batches.update(changed)
    assert second is not None
    assert (second.version, second.state, second.parts) == (1, "running", places)
    assert await stores.batches.get("a") == second
    assert await stores.batches.update(first) is None
    assert await stores.batches.update(batch("never opened")) is None


async def test_batches_are_listed_newest_first_of_all_or_of_one_tenant(
    stores: QueueStores,
) -> None:
    for number in range(5):
        tenant = "bob" if number % 2 else "ada"
        await stores.batches.open(batch(f"b{number}", number, tenant))
    await stores.batches.open(batch("b3", 99, "bob"))
    assert [b.id for b in await stores.batches.list(3)] == ["b4", "b3", "b2"]
    assert [b.id for b in await stores.batches.list(9, "bob")] == ["b3", "b1"]
    assert await stores.batches.list(9, "cyd") == []


async def test_a_forgotten_batch_is_gone(stores: QueueStores) -> None:
    for id in ("a", "b", "c"):
        await stores.batches.open(batch(id))
    await stores.batches.forget("a", 0)
    await stores.batches.forget("b", 60_000)
    await stores.batches.forget("nobody", 0)
    assert await stores.batches.get("a") is None
    assert [b.id for b in await stores.batches.list(9)] == ["b", "c"]


# -- the fleet ---------------------------------------------------------------------------------


async def test_members_are_there_until_their_time_is_over_or_they_leave(
    stores: QueueStores, clock: ManualClock
) -> None:
    assert (await stores.fleet.join("b", ["mail"], 1_000)).members == ["b"]
    assert await stores.fleet.join("a", ["push", "mail"], 3_000) == (["a", "b"], ["mail", "push"])
    await clock.advance(1.0)
    assert await stores.fleet.join("c", [], 3_000) == (["a", "c"], ["mail", "push"])
    await stores.fleet.leave("a")
    assert (await stores.fleet.join("c", [], 3_000)).members == ["c"]
    assert await stores.fleet.actions() == ["mail", "push"]


async def test_an_action_is_offered_while_a_worker_that_has_it_is_there(
    stores: QueueStores, clock: ManualClock
) -> None:
    assert await stores.fleet.offered() == []
    await stores.fleet.join("a", ["mail", "heatsink.own"], 3_000)
    await stores.fleet.join("b", ["mail", "push"], 1_000)
    assert await stores.fleet.offered() == ["heatsink.own", "mail", "push"]
    await clock.advance(1.0)
    assert await stores.fleet.offered() == ["heatsink.own", "mail"]
    await clock.advance(2.0)
    assert await stores.fleet.offered() == []


async def test_nothing_is_offered_once_the_last_worker_has_left(stores: QueueStores) -> None:
    await stores.fleet.join("a", ["mail"], 60_000)
    await stores.fleet.join("b", ["push"], 60_000)
    await stores.fleet.leave("a")
    assert "push" in await stores.fleet.offered()
    await stores.fleet.leave("b")
    assert await stores.fleet.offered() == []
    assert await stores.fleet.actions() == ["mail", "push"]


async def test_an_action_is_known_for_a_day_after_its_last_worker(
    stores: QueueStores, clock: ManualClock
) -> None:
    await stores.fleet.join("a", ["mail", "heatsink.own"], 3_000)
    await clock.advance(ANNOUNCED_MS / 1000)
    await stores.fleet.join("b", ["push"], 3_000)
    assert await stores.fleet.actions() == ["mail", "push"]
    await clock.advance(3.0)
    assert await stores.fleet.actions() == ["push"]


async def test_a_partition_has_one_owner_at_a_time(stores: QueueStores, clock: ManualClock) -> None:
    assert await stores.fleet.own(1, "a", 1_000)
    assert not await stores.fleet.own(1, "b", 1_000)
    assert await stores.fleet.own(2, "b", 1_000)
    await clock.advance(0.9)
    assert await stores.fleet.own(1, "a", 1_000)
    await clock.advance(0.9)
    assert not await stores.fleet.own(1, "b", 1_000)
    await clock.advance(0.1)
    assert await stores.fleet.own(1, "b", 1_000)
    await stores.fleet.disown(1, "a")
    assert not await stores.fleet.own(1, "a", 1_000)
    await stores.fleet.disown(1, "b")
    assert await stores.fleet.own(1, "a", 1_000)


async def test_leases_with_the_mark_of_a_dead_owner_end_with_its_ownership(driver: Driver) -> None:
    fleet, queue = driver.stores.fleet, driver.stores.queue
    await driver.submit("a", [4])
    claimed = [(await driver.claim(1, name)).slices[0] for name in ("m1x", "m2x")]
    first, second = (each.attempt for each in claimed)
    await fleet.disown(PARTITION, "other", "m3")
    await fleet.disown(PARTITION, "me", "m1")
    assert await fleet.own(PARTITION, "b", 60_000)
    found = await queue.claim(PARTITION, ClaimRequest("b", "m4", 9, 60_000, {}, []))
    assert sum(each.count for each in found.slices) == 3
    assert await queue.settle(PARTITION, [], [first, second], 60_000) == [first]


@pytest.mark.parametrize("ttl_ms", [1_500, 30_000])
async def test_a_partition_is_its_owners_until_their_time_is_up(
    stores: QueueStores, clock: ManualClock, ttl_ms: int
) -> None:
    """Two owners at once would run more workers than there are meant to be."""
    for owner, other in (("a", "b"), ("b", "a")):
        assert await stores.fleet.own(1, owner, ttl_ms)
        left_ms = ttl_ms
        for early_ms in (1_200, 1_001, 999, 500, 100, 2):
            await clock.advance((left_ms - early_ms) / 1000)
            left_ms = early_ms
            assert not await stores.fleet.own(1, other, 60_000), f"{early_ms} ms early"
        assert await stores.fleet.own(1, owner, ttl_ms), "it renews, and has as long again"
        await clock.advance((ttl_ms - 2) / 1000)
        assert not await stores.fleet.own(1, other, ttl_ms)
        await clock.advance(0.003)


async def test_the_first_plan_is_kept_until_a_newer_one_comes(stores: QueueStores) -> None:
    assert await stores.fleet.plan(QueuePlan(7, 7), keep=False) == QueuePlan(7, 7)
    assert await stores.fleet.plan(QueuePlan(4, 4)) == QueuePlan(4, 4)
    assert await stores.fleet.plan(QueuePlan(9, 9, version=7)) == QueuePlan(4, 4)
    assert await stores.fleet.plan(QueuePlan(7, 7), keep=False) == QueuePlan(4, 4)
    assert await stores.fleet.change(QueuePlan(8, 8, version=1)) == QueuePlan(8, 8, version=1)
    assert await stores.fleet.change(QueuePlan(2, 8, version=1)) == QueuePlan(8, 8, version=1)
    assert await stores.fleet.plan(QueuePlan(4, 4)) == QueuePlan(8, 8, version=1)


async def test_a_change_may_be_the_first_plan(stores: QueueStores) -> None:
    assert await stores.fleet.change(QueuePlan(8, 8, version=0)) == QueuePlan(8, 8, version=0)


# -- limits ------------------------------------------------------------------------------------


async def test_a_lane_without_a_limit_is_granted_everything(stores: QueueStores) -> None:
    assert await stores.limits.rate_of("mail") is None
    grants = await stores.limits.reserve("mail", 2_500, 0)
    assert (grants.size, grants.wait_ms) == (1_000, [0.0, 0.0, 0.0])


async def test_a_rate_begins_when_nobody_starts_items_without_start_times_any_more(
    stores: QueueStores, clock: ManualClock
) -> None:
    assert (await stores.limits.reserve("mail", 0, 0)).free_ms == 0.0
    free = await stores.limits.reserve("mail", 5, 0)
    assert free.free_ms > 0.0
    await clock.advance(0.25)
    await stores.limits.declare("mail", Rate(10))
    first = await stores.limits.reserve("mail", 1, 10_000)
    assert first.free_ms == 0.0
    assert free.free_ms - 250.0 <= first.wait_ms[0] <= 1_020.0


async def test_a_declared_rate_is_booked_ahead_and_never_twice(stores: QueueStores) -> None:
    await stores.limits.declare("mail", Rate(10))
    assert await stores.limits.rate_of("mail") == 10.0
    first = await stores.limits.reserve("mail", 3, 10_000)
    assert (first.size, first.wait_ms) == (1, [0.0, 102.0, 204.0])
    later = await stores.limits.reserve("mail", 100, 600)
    assert later.wait_ms == pytest.approx([306.0, 408.0, 510.0])
    assert (await stores.limits.reserve("mail", 100, 0)).wait_ms == []
    await stores.limits.declare("mail", None)
    assert await stores.limits.rate_of("mail") is None


async def test_refusals_lower_the_rate_and_time_raises_it(
    stores: QueueStores, clock: ManualClock
) -> None:
    await stores.limits.refused("mail", 100.0, 2_000)
    lowered = await stores.limits.rate_of("mail")
    await stores.limits.refused("mail", 100.0, 2_000)
    assert lowered is not None
    assert lowered < 50
    assert await stores.limits.rate_of("mail") == lowered, "one surge counts once"
    grants = await stores.limits.reserve("mail", 1, 10_000)
    assert (grants.wait_ms, grants.then_ms) == ([], 2_000.0)
    await clock.advance(5.0)
    raised = await stores.limits.rate_of("mail")
    assert raised is not None
    assert raised > lowered
    await stores.limits.refused("mail", 100.0, 0)
    again = await stores.limits.rate_of("mail")
    assert again is not None
    assert again < raised


async def test_a_lane_that_was_refused_long_ago_is_as_good_as_unlimited(
    stores: QueueStores, clock: ManualClock
) -> None:
    await stores.limits.refused("mail", 100.0, 0)
    await clock.advance(100_000.0)
    assert await stores.limits.rate_of("mail") == 10_000_000
    await stores.limits.refused("mail", 100.0, 0)
    await clock.advance(100_000.0)
    assert (await stores.limits.reserve("mail", 5, 0)).wait_ms == [0.0]


# -- the bell ----------------------------------------------------------------------------------


async def test_the_bell_rings_for_what_can_be_claimed(driver: Driver, stores: QueueStores) -> None:
    wait = asyncio.ensure_future(stores.bell.wait(60.0))
    assert await ring_until_heard(driver, wait) == {PARTITION}


async def test_the_bell_gives_up_in_time(stores: QueueStores, clock: ManualClock) -> None:
    wait = asyncio.ensure_future(stores.bell.wait(1.0))
    await clock.advance(1.0)
    assert await wait == set()
